"""Weights that the program's own lines made bad since the last update: a projection by hand behind it, or the ascent of
sharpness-aware training between two backwards.

The weights as the last update left them are still there where they are small (see `engine.state.state_shadow`). From
them the lines behind the update are run again, or a round of this update and then the lines behind its backward. The
round must give the loss that it gave: that shows that these were the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...detect.loop.program_frames import frames_of_program, living
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.readable_tensors import has_values
from ...engine.recovery.reruns.side_effects import HasEffect
from ...engine.state.rng import take_rng
from ..loops.after_backward import LinesAfter, lines_after, lines_behind, no_loss
from ..loops.loop_slice import loops_around
from .rerun.loop_lines import LoopPass
from .rerun.loop_step import LoopPassBatch, LoopStep
from .rerun.rerunnable_parts import RerunnableParts

if TYPE_CHECKING:
    from ..optimizer.optimizer_loop import OptimizerLoop
    from .process_loop import ProcessLoop

LINES_AFTER = "the weights of the last update were put in place, and the lines behind backward were run again"


class SpoiledWeightsStep(LoopStep):
    """The first round of an update from the weights before it. Its update is what the program's lines write."""

    lines: LinesAfter
    weights: Mapping[Tensor, Tensor]
    """The parameters, and what they were after the last update."""

    @torch.no_grad()
    def restore(self) -> None:
        super().restore()
        for parameter, before in self.weights.items():
            parameter.data.copy_(before)
        for values in self._loop.optimizer.state.values():
            for name, value in list(values.items()) if isinstance(values, dict) else ():
                if _is_bad(value):
                    del values[name]  # written with the weights

    def restored_tensors(self) -> list[Tensor]:
        return [*super().restored_tensors(), *tensors_in(list(self._loop.optimizer.state.values()))]

    def commit(self) -> None:
        state = self._noted or self._user_state()
        try:
            with torch.set_grad_enabled(self._grad_enabled):
                self.lines.run(self._evaluated.changed())
        finally:
            state.restore()

    def _user_state(self) -> Any:
        self._after = self.lines  # they reach more of the program's objects than the round itself
        try:
            return super()._user_state()
        finally:
            self._after = None

    def spoils(self) -> bool:
        """Whether the round gives the loss that it gave and its lines then make weights bad, without other effects."""
        batch: LoopPassBatch = self.batches[0]
        with self.examining():
            self.restore()
            try:
                with self.supervised(self._user_state()):
                    terms = self.forward(batch)
                    if float(terms["loss"].detach()) != float(batch.loop_pass.loss):
                        return False
                    self.backward(terms)
                    sound = not any(map(_is_bad, self.weights))
                    self.commit()
                    return sound and any(map(_is_bad, self.weights))
            except (Exception, HasEffect):  # their lines, out of their place, may raise anything
                return False


def kept_weights(loop: OptimizerLoop) -> dict[str, Tensor]:
    """The parameters by name as the last update left them, flat: those that are small enough to be kept. Views."""
    shadow = loop.update_check.shadow if loop.update_check is not None else None
    kept = shadow.kept() if shadow is not None else {}
    return {name.partition(" ")[2]: value for name, value in kept.items() if name.startswith("parameter ")}


def spoiled_weights(
    watch: ProcessLoop, loop: OptimizerLoop, rerun: RerunnableParts, kept: Mapping[str, Tensor]
) -> SpoiledWeightsStep | None:
    """The step whose lines made the weights bad; None where that cannot be shown. Reads the device. `kept` are those
    that `kept_weights` gave before anything was restored."""
    weights = {p: kept[name].view(p.shape) for name, p in loop.named_parameters().items() if name in kept}
    if any(p not in weights for p in loop.parameters) or any(map(_is_bad, weights.values())):
        return None
    for first, lines in _rounds(watch):
        step = rerun.replayable([first], SpoiledWeightsStep)
        assert isinstance(step, SpoiledWeightsStep)
        step.lines, step.weights = lines, weights
        if step.spoils():
            return step
        step.release()
    return None


def _rounds(watch: ProcessLoop) -> Iterator[tuple[LoopPass, LinesAfter]]:
    """What ran since the last update: the lines behind it, with a round that computes nothing, and the rounds with a
    finite loss, each with the lines from its backward to the next round or to the update. One whose gradients were
    cleared again counts as one of an update before."""
    slices = watch.slices
    yield from _behind_update()
    rounds = [*(slices.before[-1] if slices.before else ()), *slices.loop_passes]
    for place, first in enumerate(rounds):
        owner, line = first.slice.owner, first.slice.last_line
        frame = living(owner, slices.ended)
        if frame is None or first.overwritten or first.slice.scaled or not math.isfinite(float(first.loss)):
            continue
        following = [each.slice for each in rounds[place + 1 : place + 2] if each.slice.owner is owner]
        until = following[0].first_line if following else frame.f_lineno
        lines = lines_after(frame, line, until) if until > line else None
        if lines is not None:
            yield first, lines


def _behind_update() -> Iterator[tuple[LoopPass, LinesAfter]]:
    """The lines behind the update that is being made, which the round before ran too."""
    frame = next(frames_of_program(), None)
    if frame is None or not loops_around(frame.f_code, frame.f_lineno):
        return
    lines = lines_behind(frame, frame.f_lineno)
    if lines is not None:
        nothing = LoopPass(no_loss(frame), {"torch": torch}, {}, take_rng(), {}, torch.zeros(()), None)
        yield nothing, lines


def _is_bad(value: Any) -> bool:
    return isinstance(value, Tensor) and has_values(value) and not bool(torch.isfinite(value.detach()).all())
