"""What is kept of a program's steps is let go when their training has ended: its memory is for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...detect.loop.program_frames import is_ours, running_frame
from ..optimizer.optimizer_loop import OptimizerLoop

if TYPE_CHECKING:
    from .process_loop import ProcessLoop


class EndedTrainings:
    """Nothing says that a training has ended. It may have where an optimizer is made between two steps, and it has
    where the program has dropped the optimizer."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._watch = watch
        self._let_go_at = 0
        self.in_turn = False
        """Whether a training went on after it had been let go: trainings take turns, and none of them has ended."""

    def steps(self, loop: OptimizerLoop) -> None:
        """An update of this training is due."""
        self.in_turn |= bool(loop.log.recent) and loop.log.recent[-1].step < self._let_go_at

    def let_go(self) -> None:
        """Keep nothing of any training in memory; what is in use wakes by itself."""
        watch = self._watch
        if not self.in_turn:
            self._let_go_at = watch.step
            watch.ledger.rest(watch.models.moving_buffers())
            for each in (watch.past, watch.slices, watch.models, watch.examiner, watch.backwards, watch.batches):
                each.let_go()

    def optimizer_gone(self) -> None:
        """The program has dropped an optimizer, and others may go on. Called wherever the program is just then; what
        cannot be let go in the middle of a step is let go when the next one begins."""
        watch = self._watch
        watch.models.trainer_gone = True
        if watch.models.heard or is_ours(running_frame(2)) or not watch.idle:
            return
        calls = watch.models.calls
        if calls and not any(watch.optimizers.trainers_of(call.module) for call in calls):  # the last step was its own
            watch.models.let_go_untrained()
            for each in (watch.past, watch.slices, watch.backwards):
                each.let_go()
