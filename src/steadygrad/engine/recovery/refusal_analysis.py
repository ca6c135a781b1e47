"""A second look at a refused step: what was wrong with it, and which of its micro-batches were good.

Restores what the step's forward moved and may run it again. Ends with everything as before the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ...detect.gradient_norms import GradientProbe, Gradients, finite_gradients
from ...detect.tensors.nested_tensors import named_tensors_in
from ...detect.tensors.readable_tensors import describable, finite_as_far_as_read
from ...records import Reading
from ...records.rerun_flag import rerun
from ..distributed.consensus import SingleRank
from ..record.run_log import RunLog
from ..state.forward_state import Entry, ForwardState
from ..state.rng import put_rng, take_rng
from ..state.training_state import TrainingState, bad_state, can_be_scanned, non_finite
from ..step.numerics_findings import muted
from ..step.user_step import UserStep
from ..step.window import Window, with_room
from .reruns.reached_state import closed_within, reached_state_kept
from .reruns.sinks import HasEffect

T = TypeVar("T")
Kept = list[tuple[Any, str]]
"""Micro-batches with their keys."""


class RefusalAnalysis:
    """Looks at refused steps. Reads the device; the ranks of a run look together."""

    def __init__(
        self,
        *,
        program: UserStep,
        forward: ForwardState,
        state: TrainingState,
        log: RunLog,
        consensus: SingleRank,
        whole: bool,
    ) -> None:
        self._program, self._forward, self._state, self._log = program, forward, state, log
        self._consensus = consensus
        self._whole = whole  # windows of someone else's loop stay whole

    def at(self, reading: Reading, window: Window, gradients: Gradients | None) -> tuple[Reading, Kept]:
        """Restore what the refused window's forward moved; find what was wrong and which micro-batches were good.

        Returns the reading with what was found, and the good micro-batches, to be fed again.
        """
        assert window.entry is not None
        looked: dict[str, Any] = {}
        if gradients is not None and math.isinf(reading.grad_norm):
            looked["gradients_finite"] = finite_gradients(gradients)
        if gradients is not None:
            gradients.tensors = []  # whoever called holds on to this object while the step is run again
        self.put_back(window)
        if not reading.undone:
            looked |= bad_state(self._state)
        looked["bad_inputs"] = tuple(
            name or "batch" for name in _non_finite_in([item for b in window.batches for item in _floating(b)])
        )
        looked = self._consensus.looked(looked, reading)
        clean = not any(looked.get(kind) for kind in ("bad_parameters", "bad_state", "bad_buffers", "bad_inputs"))
        losses_finite = math.isfinite(reading.loss) and all(map(math.isfinite, reading.terms.values()))
        again = self._consensus.all("can run again", window.can_run_again and not self._several_reach())
        if clean and losses_finite and math.isinf(reading.grad_norm) and gradients is None and again:
            found = self._again(window, lambda: self._gradients_finite_again(window), None)
            looked |= {} if found is None else {"gradients_finite": found}
        if clean and losses_finite and self._program.scaler is not None and not math.isfinite(reading.grad_norm):
            # What cannot be tried again is taken for an overflow, as GradScaler takes it; a scale that keeps
            # shrinking is its own symptom.
            looked["scale_to_blame"] = not again or self._again(window, lambda: self._finite_at_scale_one(window), True)
            if looked["scale_to_blame"]:
                self._back_off_scale()
        kept: Kept = []
        may_part = self._program.accumulate > 1 and not self._whole and again
        if may_part and clean_enough(looked) and not looked.get("scale_to_blame"):
            kept = self._again(window, lambda: self._good_micro_batches(reading, window), [])
        reading = replace(reading, refused=True, **looked)
        may_run = clean and again and not looked.get("scale_to_blame")
        with reached_state_kept(self._program, self._state) if may_run and self._consensus.size > 1 else nullcontext():
            reading = self._consensus.find_culprits(reading, self._program, window if may_run else None)
        if may_run and self._consensus.size > 1:
            self.put_back(window)
        return reading, kept

    def _several_reach(self) -> str | None:
        """Of several ranks all must run a step again, or none: what this one's step reaches that must not be used."""
        if self._consensus.size > 1:
            self._program.closed = closed_within(self._program, self._state)
            if not self._consensus.all("reaches nothing closed", self._program.closed is None):
                self._program.closed = self._program.closed or "another rank's step reaches what cannot be restored"
        return self._program.closed

    def put_back(self, window: Window) -> None:
        """Everything that the window's forward moved, as before it; no gradients."""
        assert window.entry is not None
        uncertain = self._forward.restore(window.entry)
        uncertain += [name for name in self._forward.unregistered() if name not in uncertain]
        self._program.zero_grad()
        if uncertain:
            self._log.show(
                f"attributes {', '.join(uncertain)} of the model changed during a refused step and were not seen to "
                "change before, so they may be off; register them with extra_state=",
                kind="unregistered",
            )
            self._log.journal.event("unregistered_state_changed", names=uncertain)

    def leave_as(self, after: Entry) -> None:
        """Everything as it was after the window's forward, but for the loss scale; no gradients."""
        scaler = self._program.scaler
        scale, growth = scaler._scale.clone(), scaler._growth_tracker.clone()
        self._forward.restore(after)
        scaler._scale.copy_(scale)
        scaler._growth_tracker.copy_(growth)
        self._program.zero_grad()

    def _again(self, window: Window, work: Callable[[], T], otherwise: T) -> T:
        """`otherwise` where the step does what could not be undone. Out of memory, once more with what can be given
        back; one of several ranks cannot do that by itself."""
        scale = self._program.scale()
        try:
            with reached_state_kept(self._program, self._state):
                return with_room(work, lambda: self.put_back(window)) if self._consensus.size == 1 else work()
        except HasEffect as effect:
            self._log.journal.event("steps_not_run_again", detail=str(effect))
            self._program.set_scale(scale)
            self.put_back(window)
            return otherwise

    def _rerun(self, window: Window) -> Gradients | None:
        for batch in window.batches:
            self._program.micro(batch)
        return GradientProbe(self._program.parameters).measure()

    def _gradients_finite_again(self, window: Window) -> bool:
        gradients = self._rerun(window)
        answer = gradients is not None and finite_gradients(gradients)
        self.put_back(window)
        return self._consensus.all("gradients finite", answer)

    def only_norm_overflows(self, reading: Reading, window: Window) -> bool:
        """Whether a step that the device refused for its norm has finite gradients. Leaves no gradients, and what its
        forward moved as before it; random numbers are those of now."""
        losses = (reading.loss, *reading.terms.values(), *reading.micro_losses)
        if reading.grad_norm != math.inf or not all(map(math.isfinite, losses)):
            return False
        rng = take_rng()
        with muted(), rerun():
            self.put_back(window)
            finite = self._again(window, lambda: self._gradients_finite_again(window), False)
        put_rng(rng)
        return finite

    def _finite_at_scale_one(self, window: Window) -> bool:
        """Whether the same step is finite without the loss scale: then the scale was too large, and nothing else."""
        scaler = self._program.scaler
        scaler._scale.fill_(1.0)
        gradients = self._rerun(window)
        answer = gradients is None or finite_gradients(gradients)
        self.put_back(window)
        return self._consensus.all("finite at scale one", answer)

    def _back_off_scale(self) -> None:
        """What GradScaler does after an overflow."""
        scaler = self._program.scaler
        scaler._scale.mul_(scaler.get_backoff_factor())
        scaler._growth_tracker.zero_()

    def good_part(self, window: Window) -> Kept | None:
        """The good micro-batches of an unfinished window if some are bad, whose traces are then gone; None if none is.
        Reads the device."""
        finite = all(math.isfinite(float(value)) for terms in window.terms for value in terms.values())
        gradients = GradientProbe(self._program.parameters).measure()
        if finite and (gradients is None or finite_gradients(gradients)):
            return None
        self.put_back(window)
        if not window.can_run_again:
            return []
        kept: Kept = []
        return self._again(window, lambda: self._good_micro_batches(Reading(step=-1, loss=math.nan), window), kept)

    def _good_micro_batches(self, reading: Reading, window: Window) -> Kept:
        """Run the window's micro-batches one by one from its beginning and keep the good ones."""
        limit = reading.grad_norm_limit if reading.grad_norm_limit is not None else math.inf
        loss_limit = reading.loss_limit if reading.loss_limit is not None else math.inf
        solo: list[tuple[float, Any, str]] = []
        self.put_back(window)
        for batch, key in zip(window.batches, window.keys, strict=True):
            entry = self._forward.take()
            self._program.zero_grad()
            terms = self._program.micro(batch)
            loss_good = terms is not None and all(math.isfinite(float(value)) for value in terms.values())
            loss_good = loss_good and terms is not None and float(terms["loss"]) <= loss_limit
            norm = _norm_of(GradientProbe(self._program.parameters).measure(), self._program.scaler)
            if self._consensus.all("micro-batch", loss_good and math.isfinite(norm)):
                solo.append((norm, batch, key))
            else:
                self._forward.restore(entry)
        if len(solo) == len(window) and solo:
            # Every one is finite, so their sum was too large: leave out those that are too large alone, or the largest.
            cut = limit if any(norm > limit for norm, _, _ in solo) else max(norm for norm, _, _ in solo) * (1 - 1e-9)
            solo = [item for item in solo if item[0] <= cut]
        self.put_back(window)
        return [(batch, key) for _, batch, key in solo]


def clean_enough(looked: dict[str, Any]) -> bool:
    """Whether the fault is in the batch and not in what the step started from."""
    return not any(looked.get(kind) for kind in ("bad_parameters", "bad_state", "bad_buffers"))


def _floating(batch: Any) -> list[tuple[str, torch.Tensor]]:
    return [(n, t) for n, t in named_tensors_in(batch) if t.is_floating_point() and t.numel()]


def _non_finite_in(tensors: list[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of those with a NaN or Inf: dense ones in one pass, others one by one. Reads the device."""
    dense = [(name, tensor) for name, tensor in tensors if describable(tensor) and can_be_scanned(tensor)]
    done = {id(tensor) for _, tensor in dense}
    odd = [name for name, tensor in tensors if id(tensor) not in done and not finite_as_far_as_read(tensor)]
    return non_finite(dense) + odd


def _norm_of(gradients: Gradients | None, scaler: Any) -> float:
    if gradients is None:
        return 0.0
    total = float(gradients.total)
    return total / float(scaler._scale) if scaler is not None else total
