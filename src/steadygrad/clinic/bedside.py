"""The guard's failing step as a patient: the state is still the one from before the step, so no snapshot is needed.

A replay of forward and backward moves only what forward moves, and that is put back cheaply. Only when a replay goes
on into the optimizer is everything else copied, once, and put back after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ..act.flight import Window
from ..act.forward_state import ForwardState
from ..act.program import PRECISIONS, StepProgram
from ..act.training_state import TrainingState, Tree, copy_tree
from ..records import Finding, StepRecord
from ..watch.gradients import clip_exact, measure_gradients
from .patient import StepFacts

_SAMPLE_ID_KEYS = ("sample_id", "sample_ids", "example_id", "id", "index", "idx", "indices", "uid")


class GuardPatient:
    """One refused window of a guard, replayable. Satisfies `clinic.patient.Patient`."""

    def __init__(
        self,
        *,
        program: StepProgram,
        forward: ForwardState,
        state: TrainingState,
        window: Window,
        step: int,
        symptom: str,
        findings: tuple[Finding, ...],
        history: Sequence[StepRecord],
        names: Mapping[int, str],
        max_grad_norm: float | None,
    ) -> None:
        self._program = program
        self._forward_state = forward
        self._state = state
        self._entry = window.entry
        self._copy: Tree | None = None
        self._committed = False
        self._max_grad_norm = max_grad_norm
        self.model = program.model
        self.optimizers = program.optimizers
        self.batches = list(window.batches)
        scaler = program.scaler
        self.facts = StepFacts(
            step=step,
            symptom=symptom,
            findings=findings,
            history=tuple(history),
            autocast=PRECISIONS[program.precision],
            loss_scale=float(scaler._scale) if scaler is not None else None,
            max_grad_norm=max_grad_norm,
            accumulation=program.accumulate,
            device_type=program.device.type,
            sample_ids=sample_ids_of(window.batches[-1]) if window.batches else None,
            parameter_names=names,
            dynamic_scale=scaler is not None,
        )

    def restore(self) -> None:
        """Back to the moment before the step. Cheap unless the optimizer has run since."""
        if self._committed and self._copy is not None:
            self._state.restore(self._copy)
            self._committed = False
        assert self._entry is not None
        self._forward_state.restore(self._entry)
        self._program.zero_grad()

    def prepare(self) -> None:
        """The guard's loop does nothing between steps that a replay would have to redo."""

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        terms = self._program.forward(batch)
        assert terms is not None
        return terms

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        self._program.backward(terms)

    def commit(self) -> None:
        """Unscale, clip, step, after keeping a copy of what the step changes."""
        if self._copy is None:
            self._copy = copy_tree(self._state.live(), torch.clone)
        self._committed = True
        self._program.unscale()
        if self._max_grad_norm is not None and (gradients := measure_gradients(self._program.parameters)) is not None:
            clip_exact(gradients, self._max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Around a whole diagnosis. A compiled model is replayed eagerly: a tracer cannot see into compiled code."""
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            try:
                yield
            finally:
                self.restore()
                self._copy = None


def sample_ids_of(batch: Any) -> list[Any] | None:
    """The user's own ids of the rows, where the batch is a mapping that carries them under a usual name."""
    if not isinstance(batch, Mapping):
        return None
    for key in _SAMPLE_ID_KEYS:
        value = batch.get(key)
        if isinstance(value, Tensor) and value.dim() == 1 and not value.is_floating_point():
            return list(value.tolist())
        if isinstance(value, list | tuple) and value and all(isinstance(item, str | int) for item in value):
            return list(value)
    return None
