"""A tracer over the program's own step, for the steps after one whose trouble lay outside of the model.

The loop cannot be run again, so it is listened to while it runs: from the model's call to the update, every op is
digested, and what the loss code reads is kept. It reads more and changes nothing: the numbers are the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...diagnosis.batches import walk_batch
from ...diagnosis.causes import name_cause
from ...diagnosis.evidence import Evidence
from ...diagnosis.exam import Examination, facts_of, locate
from ...diagnosis.origin import find_birth
from ...diagnosis.seen import StepSeen
from ...diagnosis.specimen import Specimen
from ...diagnosis.trace import Tracer
from ...diagnosis.tracelog import Touch
from ...records import Diagnosis
from ..desk import Desk
from .calls import Call, inner

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MAX_KEPT = 1 << 22
"""Elements of one op's tensors past which the op is digested and not copied."""


class _LossTracer(Tracer):
    """A tracer that also keeps the tensors of every op that runs outside of all modules: the loss code's."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.specimens: dict[int, Specimen] = {}

    def dispatched(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not all(type(each) in _PLAIN for each in args if isinstance(each, Tensor)):
            return func(*args, **kwargs)  # a tensor of another kind does its own work below: not ours to look into
        ordinal = len(self.trace.records)
        if self.module is None and sum(t.numel() for t in args if isinstance(t, Tensor)) <= _MAX_KEPT:
            specimen = self.specimens[ordinal] = Specimen()
            self.watch[ordinal] = specimen.watcher()
        return super().dispatched(func, args, kwargs)


class Tracing:
    """One traced window: opened at a model's call, closed at the update."""

    def __init__(self, call: Call, desk: Desk) -> None:
        self._tracer = _LossTracer(inner(call.module))
        self._open = ExitStack()
        self._loss: Touch | None = None
        self._loss_finite = True
        self._named = desk.named_parameters()
        self.closed = False
        trace = self._tracer.trace
        for name, parameter in self._named.items():
            trace.name(parameter, "parameter", name)
        for name, buffer in inner(call.module).named_buffers():
            trace.name(buffer, "buffer", name)
        for name, value in walk_batch(call.batch):
            if isinstance(value, Tensor) and not value.is_sparse:
                trace.name(value, "batch", name)
        self._open.enter_context(self._tracer.tracing())

    @staticmethod
    def possible(desk: Desk) -> bool:
        """Whether no mode of the program's own is in force that might end before ours does, and tensors are plain."""
        if not all(type(parameter) in _PLAIN for parameter in desk.parameters):
            return False
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return not modes and not _get_current_dispatch_mode_stack()

    def backward_begins(self, loss: Tensor) -> None:
        """What is about to be differentiated. Reads the device."""
        self._tracer.paused = True
        value = float(loss.detach()) if loss.numel() == 1 else 0.0
        if not math.isfinite(value) and self._loss is None:
            self._loss, self._loss_finite = self._tracer.sink(loss), False
        self._tracer.paused = False
        self._tracer.stage = "backward"

    def close(self) -> None:
        """Stop listening. The trace stays readable."""
        if not self.closed:
            self.closed = True
            self._open.close()

    def diagnosis(self, symptom: str, step: int) -> Diagnosis | None:
        """Where the bad value of this window was born; None if the trace does not show it."""
        self.close()
        sinks = [self._loss] if self._loss is not None else self._bad_gradients()
        trace = self._tracer.trace
        trace.finish()
        birth = find_birth(trace, [sink for sink in sinks if sink is not None], forward_is_clean=self._loss_finite)
        if birth is None:
            return None
        exam = Examination(StepSeen(), trace, birth=birth, record=birth.record)
        if birth.record is not None:
            exam.specimen = self._tracer.specimens.get(birth.record.ordinal, exam.specimen)
            if birth.record.forward_ordinal is not None:
                exam.forward = trace.records[birth.record.forward_ordinal]
                exam.forward_specimen = self._tracer.specimens.get(exam.forward.ordinal, exam.forward_specimen)
        origin = locate(exam)
        if origin is None:
            return None
        evidence = Evidence(symptom=symptom, step=step, phase=origin.phase, leaf=birth.leaf, is_nan=birth.is_nan)
        if exam.record is not None:
            evidence = _about(exam, evidence)
        cause, match, _ = name_cause(evidence)
        return Diagnosis(
            symptom=symptom,
            phase=origin.phase,
            cause=cause,
            origin=origin,
            confidence=match.confidence if match else 0.0,
            because=match.because if match else "no known pattern fits this evidence",
            notes=("seen in the program's own step while it ran; it was not run again, and no remedy was tried",),
        )

    def _bad_gradients(self) -> list[Touch | None]:
        bad = [p.grad for p in self._named.values() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
        return [self._tracer.sink(gradient) for gradient in bad[:16] if not gradient.is_sparse]


def _about(exam: Examination, evidence: Evidence) -> Evidence:
    record, named = exam.record, exam.named
    assert record is not None
    assert named is not None
    shown = [d for d in exam.specimen.outputs if d.num_nan or d.num_inf] or list(exam.specimen.outputs)
    return replace(
        evidence,
        op=named.op,
        call=named.call,
        born_in=record.op,
        backward=record.backward,
        stage=record.stage,
        dtype=shown[0].dtype if shown else "",
        inputs=exam.specimen.inputs,
        outputs=exam.specimen.outputs,
        facts=facts_of(exam),
    )
