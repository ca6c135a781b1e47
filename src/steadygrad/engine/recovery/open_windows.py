"""Windows that do not end in an update: the user's code raised, someone looks at the model, a step before was refused.

What the program itself did until it raised stays, as a plain loop would have it that catches the same exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...records import Outcome
from ..engine import Step
from ..state.forward_state import Entry
from ..state.rng import put_rng
from ..step.window import Window

if TYPE_CHECKING:
    from ..owned_loop import OwnedLoop


class OpenWindows:
    """The unfinished windows of one training loop."""

    def __init__(self, loop: OwnedLoop) -> None:
        self._loop = loop
        self.looked_at: Entry | None = None
        """What a refused step began with, while it is looked at."""

    def tidy(self) -> None:
        """The model is about to be looked at with a window unfinished: a bad micro-batch in it must not show."""
        loop = self._loop
        window = loop.recovery.as_fed(loop.step, loop.window)
        kept = loop.recovery.good_part(window)
        if len(kept) < len(window):
            loop.window = Window()
            out = window.without({key for _, key in kept})
            reading, decision = loop.log.leave_out(loop.step, out)
            loop.diagnose(Step(loop.step, out, Outcome(step=loop.step)), reading, decision)
            loop.log.announce()
            loop.run_again(kept)

    def put_behind(self, step: Step) -> None:
        """The window in flight is to be run again behind a refused step, unless its content is lost."""
        loop, outcome = self._loop, step.next_outcome
        loop.recovery.as_fed(step.number, step.window, loop.window)
        window = loop.recovery.as_fed(step.number + 1, loop.window)
        if window.can_run_again:
            step.behind = window.fed
            return
        step.next_outcome = None
        reading, decision = loop.log.leave_out(step.number + 1, window, "its batch was overwritten")
        if outcome is not None:
            outcome.resolve(decision=decision, reading=reading, applied=False)

    def explain_crash(self, error: BaseException, batch: Any, key: str) -> None:
        """The user's code raised in forward: find out why, and leave everything as it raised."""
        loop, forward = self._loop, self._loop.forward
        entry = loop.window.entry or loop.entered
        if entry is None or not loop.diagnoses.explains_crashes or self.looked_at is not None:
            return
        self._see_what_moved()
        after, gradients = forward.take(), [parameter.grad for parameter in loop.program.parameters]
        try:
            window = loop.window.without(set())
            window.add(batch, key, {}, entry, loop.content)
            if loop.recovery.as_fed(loop.step, window).can_run_again:
                loop.diagnoses.of_crash(error, window)
        finally:
            forward.restore(after)
            forward.forget_since(after.place)
            for parameter, gradient in zip(loop.program.parameters, gradients, strict=True):
                parameter.grad = gradient

    def raised(self) -> None:
        """The user's code raised, or Ctrl-C came. Micro-batches before it stay in the window, with their gradients; the
        one that raised is no part of it. Reads the device."""
        loop = self._loop
        loop.consensus.abandon()
        with loop.barrier("forward_state", None):
            if self.looked_at is not None:  # it was raised by a run of ours, not of the program's
                loop.forward.restore(self.looked_at)
                if loop.rng_after is not None:
                    put_rng(loop.rng_after)
            self._see_what_moved()
            if not len(loop.window):
                loop.program.forget()
        self.looked_at = None

    def undo_forward(self) -> None:
        """Leave no trace of a micro-batch that is run again and ended before its window was full."""
        entry = self._loop.entered
        self._loop.window = Window()
        self._loop.program.forget()
        if entry is not None:
            self._loop.forward.restore(entry)
            self._loop.forward.forget_since(entry.place)

    def _see_what_moved(self) -> None:
        self._loop.forward.left()
        self._loop.forward.notice()
        self._loop.forward.audit()
