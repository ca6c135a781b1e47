"""A tracer over the program's own step, for the steps after one whose trouble lay outside of the model.

The loop cannot be run again, so it is listened to while it runs: from the model's call to the update, every op is
digested, and what the loss code reads is kept. It reads more and changes nothing: the numbers are the same to the bit.
It costs at most about three times a plain step: a window that would take longer is not traced to its end, and after a
costly one the next windows are left alone until the average is below that.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ....detect.tensors.foreign_objects import is_tensor
from ....detect.tensors.readable_tensors import describable, has_values
from ....detect.tensors.torch_private import num_dispatch_modes, num_function_modes
from ....diagnosis.causes import name_cause
from ....diagnosis.causes.evidence import Evidence
from ....diagnosis.isolation.device_memory import forget, is_out_of_memory, release_memory, spare_memory
from ....diagnosis.isolation.resource_limits import in_a_line
from ....diagnosis.locate.examine import Examination, facts_of, locate, not_followed
from ....diagnosis.locate.op_capture import CapturedOp
from ....diagnosis.locate.origin import find_bad_origin
from ....diagnosis.replay.batch_tree import walk_batch
from ....diagnosis.replay.replay_observation import ReplayObservation, absmaxes
from ....diagnosis.trace.trace_log import OpRecord, Touch
from ....diagnosis.trace.tracer import Tracer, own_work
from ....records import Diagnosis, Origin, Reading
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.call_log import Call, inner

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

logger = logging.getLogger("steadygrad")

TRACED_STEPS = 3
"""Steps that are traced after one that could not be run again."""
_MAX_KEPT = 1 << 22
"""Elements that the copies of one window may hold in all: the loss code's own tensors, and nothing larger."""
_MIN_SPARE = 1 << 28
"""On a device with fewer free bytes than this nothing is copied at all."""
SHARE = 2.0
"""The tracer's own time may be so many times the rest of the step."""
FREE = 1.0
"""Seconds of tracing in all that are not counted: small steps are over in less."""
PATIENCE = 0.25
"""Seconds of tracing in one window before it is asked whether it costs too much."""


@dataclass(slots=True)
class _Account:
    """What tracing has cost one optimizer's steps so far, and until when it must wait."""

    spent: float = 0.0
    wait_until: float = 0.0
    announced: bool = False

    def pay(self, own: float, rest: float) -> None:
        """Note a traced window. Past the free seconds, wait until the average is low enough again."""
        self.spent += own
        if self.spent > FREE:
            self.wait_until = time.monotonic() + max(0.0, own / SHARE - rest)
        if own > FREE and not self.announced:
            self.announced = True
            logger.warning(
                "This step took %.1f s, %.1f s of them for tracing its operations: a bad value is being located. "
                "At most %d steps are traced.", own + rest, own, 3,
            )  # fmt: skip


_accounts: WeakKeyDictionary[Any, _Account] = WeakKeyDictionary()


class _LossTracer(Tracer):
    """A tracer of a step that counts: it also keeps copies of what the loss code reads, and stops at its limits.

    The loss code is what runs outside of all modules, and its backward. No failure of the tracer reaches the program.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        super().__init__(model)
        self.specimens: dict[int, CapturedOp] = {}
        self.stopped = ""
        """Why the tracer stopped before the end of the window; "" if it did not."""
        self.own = 0.0
        self._began = time.perf_counter()
        spare = spare_memory(device)
        self._left = _MAX_KEPT if spare is None or spare >= _MIN_SPARE else 0

    @property
    def rest(self) -> float:
        """Seconds since the window began that were not the tracer's own."""
        return time.perf_counter() - self._began - self.own

    def stop(self, why: str) -> None:
        """Look at nothing any more. The modes stay until the window is closed, and let everything through."""
        self.stopped = self.stopped or why
        self.paused = True

    @contextmanager
    def _contained(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            with own_work():
                yield
        except Exception as error:
            self.trace.pass_over(f"tracer failed: {in_a_line(error)}")
            if is_out_of_memory(error):
                self.stop("out of memory")
                self.specimens.clear()
                forget(error)
                release_memory()
        self.own += time.perf_counter() - began
        if self.own > PATIENCE and self.own > SHARE * self.rest:
            self.stop("tracing took more than twice as long as the step itself")

    def _read_inputs(self, record: OpRecord, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        size = sum(t.numel() for t in args if is_tensor(t))
        of_loss = record.module is None and (not record.backward or record.forward_ordinal in self.specimens)
        if of_loss and 2 * size <= self._left:
            self._left -= 2 * size
            captured_op = self.specimens[record.ordinal] = CapturedOp(light=True)
            self.watch[record.ordinal] = captured_op.watcher()
        super()._read_inputs(record, func, args, kwargs)


class StepTracing:
    """One traced window: opened at a model's call, closed at the update."""

    def __init__(self, call: Call, loop: OptimizerLoop) -> None:
        self._named = loop.named_parameters()
        device = next(iter(self._named.values())).device if self._named else torch.device("cpu")
        self._tracer = _LossTracer(inner(call.module), device)
        self._account = _accounts.setdefault(loop, _Account())
        self._open = ExitStack()
        self._loss: Touch | None = None
        self._loss_finite = True
        self.closed = False
        trace = self._tracer.trace
        for name, parameter in self._named.items():
            trace.name(parameter, "parameter", name)
        for name, buffer in inner(call.module).named_buffers():
            trace.name(buffer, "buffer", name)
        for name, value in walk_batch(call.batch):
            if is_tensor(value):
                trace.name(value, "batch", name)
        self._open.enter_context(self._tracer.tracing())

    @staticmethod
    def possible(loop: OptimizerLoop) -> bool:
        """Whether no mode of the program's own is in force that might end before ours does, tensors are plain, and
        what tracing has cost so far is paid for by plain steps since."""
        account = _accounts.get(loop)
        if account is not None and time.monotonic() < account.wait_until:
            return False
        if not all(map(describable, loop.parameters)):
            return False
        return not num_function_modes() and not num_dispatch_modes()

    def backward_begins(self, loss: Tensor) -> None:
        """What is about to be differentiated. Reads the device."""
        self._tracer.paused = True
        with self._tracer._contained():
            value = float(loss.detach()) if has_values(loss) and loss.numel() == 1 else 0.0
            if not math.isfinite(value) and self._loss is None:
                self._loss, self._loss_finite = self._tracer.sink(loss), False
        self._tracer.paused = bool(self._tracer.stopped)
        self._tracer.stage = "backward"

    def close(self) -> None:
        """Stop listening. The trace stays readable."""
        if not self.closed:
            self.closed = True
            self._open.close()
            self._account.pay(self._tracer.own, self._tracer.rest)

    def diagnosis(self, symptom: str, step: int) -> Diagnosis | None:
        """Where the bad value of this window was first computed; None if the trace does not show it."""
        self.close()
        if self._tracer.stopped:
            return None
        try:
            return self._diagnosis(symptom, step)
        except Exception as error:
            logger.debug("the traced step was not diagnosed", exc_info=error)
            forget(error)
            return None

    @property
    def stopped(self) -> str:
        """Why this window was not traced to its end; "" if it was."""
        return self._tracer.stopped

    def _diagnosis(self, symptom: str, step: int) -> Diagnosis | None:
        sinks = [self._loss] if self._loss is not None else self._bad_gradients()
        trace = self._tracer.trace
        trace.finish()
        bad_origin = find_bad_origin(
            trace, [sink for sink in sinks if sink is not None], forward_is_clean=self._loss_finite
        )
        if bad_origin is None or not_followed(trace, bad_origin):
            return None
        exam = Examination(ReplayObservation(), trace, bad_origin=bad_origin, record=bad_origin.record)
        if bad_origin.record is not None:
            exam.captured_op = self._tracer.specimens.get(bad_origin.record.ordinal, exam.captured_op)
            if bad_origin.record.forward_ordinal is not None:
                exam.forward = trace.records[bad_origin.record.forward_ordinal]
                exam.forward_captured_op = self._tracer.specimens.get(exam.forward.ordinal, exam.forward_captured_op)
        exam.captured_op.digest_copies()
        exam.forward_captured_op.digest_copies()
        origin = locate(exam)
        if origin is None:
            return None
        evidence = Evidence(
            symptom=symptom, step=step, phase=origin.phase, leaf=bad_origin.leaf, is_nan=bad_origin.is_nan
        )
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
        gradients = [p.grad for p in self._named.values() if p.grad is not None]
        sizes = absmaxes(gradients)
        bad = [gradient for gradient, size in zip(gradients, sizes, strict=True) if not math.isfinite(size)]
        return [self._tracer.sink(gradient) for gradient in bad[:16]]


def _about(exam: Examination, evidence: Evidence) -> Evidence:
    record, named = exam.record, exam.named
    assert record is not None
    assert named is not None
    shown = [d for d in exam.captured_op.outputs if d.num_nan or d.num_inf] or list(exam.captured_op.outputs)
    return replace(
        evidence,
        op=named.op,
        call=named.call,
        born_in=record.op,
        backward=record.backward,
        stage=record.stage,
        dtype=shown[0].dtype if shown else "",
        inputs=exam.captured_op.inputs,
        outputs=exam.captured_op.outputs,
        facts=facts_of(exam),
    )


def outside(watch: ProcessLoop, symptom: str, reading: Reading, why_not: str | None) -> Diagnosis:
    """What can be said of trouble between a model and its loss without running it again."""
    bad_loss = not math.isfinite(reading.loss)
    phase = "loss" if bad_loss else "backward"
    calls, backwards = watch.models.calls, watch.backwards
    notes: list[str] = []
    if why_not is not None:
        notes.append(f"nothing was replayed: {why_not}")
    else:
        notes.append(
            "the model's call was replayed and its output is finite: the bad value comes from the code after it"
        )
    if calls and calls[-1].caller[0] and backwards.where[0]:
        notes.append(f"between {_place(calls[-1].caller)} (the model's call) and {_place(backwards.where)} (backward)")
    suspect = backwards.suspect
    because = "the code between the model and the loss cannot be run again"
    if suspect is not None:
        made = f"{suspect.op} made a bad value from inputs {suspect.inputs}" if suspect.inputs else suspect.op
        because = f"by what autograd kept for backward: {made}"
    notes.append(f"the next {TRACED_STEPS} steps are traced, so that a recurrence is located exactly")
    return Diagnosis(
        symptom=symptom,
        phase=phase,
        origin=Origin(phase=phase, op=suspect.op if suspect is not None else None),
        confidence=0.3 if suspect is not None else 0.0,
        because=because,
        notes=tuple(notes),
    )


def _place(where: tuple[str, int]) -> str:
    return f"{where[0]}:{where[1]}"
