"""An exception in the user's code whose message never mentions the NaN that caused it, traced to that NaN.

`binary_cross_entropy` says that its input should lie between 0 and 1, `multinomial` that a probability is negative or
NaN, a check of shapes or ranges says its own sentence; the number went bad lines or layers before. The forward pass
is run again under the tracer up to the same exception, and the slice starts at what the raising operation was given.

A factorization of a matrix that has none raises too, and nothing is NaN there: the origin is then that operation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import TracebackType

import torch

from ...detect.observations.observed_run import Suspicion
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import has_values
from ...records import Diagnosis, Origin
from ..causes.collect_evidence import collect_evidence
from ..causes.evidence import Evidence
from ..diagnose import DiagnosisCase
from ..replay.replay_observation import ReplayObservation
from ..replay.replay_step import replay
from ..replay.replayable import Replayable
from ..trace.trace_log import Touch, Trace
from ..trace.tracer import Tracer
from .bad_rows import BadRows, rows_without_proof
from .examine import Examination, capture_op
from .origin import WRITES_CONSTANTS, BadOrigin, find_bad_origin

EXPLAINED = (RuntimeError, ValueError, AssertionError, ArithmeticError, IndexError)
LAST_OPERATIONS = 6
"""A check that fails reads what it checks: the bad value is among what the last few operations saw."""
MAX_LOCALS = 64
MAX_ELEMENTS = 1 << 24
_AFTER_A_FACTORIZATION = frozenset({"linalg_check_errors", "detach", "alias", "eq", "all", "local_scalar_dense"})
"""What torch runs between a factorization that fails and its error."""


def is_explained(error: BaseException) -> bool:
    """Whether a number of the step, bad or not, lies behind this exception. Reads the device."""
    return near_a_nan(error) or has_no_solution(error)


def has_no_solution(error: BaseException) -> bool:
    """Whether torch raised this about a matrix: it is singular, or not positive definite."""
    return isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def near_a_nan(error: BaseException) -> bool:
    """Whether a tensor that is not finite lies about where this exception was raised. Reads the device.

    An ordinary mistake has none, and is not run a second time.
    """
    known = isinstance(error, EXPLAINED) or type(error).__module__ != Exception.__module__  # or the program's own
    if not known or isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
        return False
    return any(_is_bad(value) for value in itertools.islice(_locals(error.__traceback__), MAX_LOCALS))


def _locals(trace: TracebackType | None) -> Iterator[torch.Tensor]:
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        for value in list(frame.f_locals.values()):
            items = value if isinstance(value, list | tuple) else [value]
            yield from (item for item in items[:8] if isinstance(item, torch.Tensor))


def _is_bad(tensor: torch.Tensor) -> bool:
    if not has_values(tensor) or not tensor.is_floating_point() or tensor.numel() > MAX_ELEMENTS:
        return False
    # A mask of minus infinities is no trouble by itself.
    return not bool((torch.nan_to_num(tensor.detach(), nan=math.inf, posinf=math.inf, neginf=0.0) < math.inf).all())


def explain_crash(replayable: Replayable, error: BaseException, *, depth: str) -> Diagnosis | None:
    """The diagnosis of the NaN or the matrix behind this exception; None if the step does not raise it again, or
    neither is there."""
    with replayable.examining():
        tracer = Tracer(replayable.model, owners=replayable.facts.owners)
        try:
            replay(replayable, tracer=tracer, until="backward")
            return None
        except Exception as again:
            if type(again) is not type(error):
                return None
        tracer.trace.finish()
        bad_origin = _among_the_last(tracer.trace)
        if bad_origin is None and has_no_solution(error):
            bad_origin = _failed_factorization(tracer.trace)
        if bad_origin is None or (bad_origin.record is None and (bad_origin.leaf or ("constant",))[0] == "constant"):
            return None
        exam = Examination(ReplayObservation(), tracer.trace, bad_origin, bad_origin.record)
        if bad_origin.record is not None:
            if bad_origin.record.forward_ordinal is not None:
                exam.forward = tracer.trace.records[bad_origin.record.forward_ordinal]
            capture_op(replayable, exam)
        return _CrashCase(replayable, exam, error).answer(depth)


def _among_the_last(trace: Trace) -> BadOrigin | None:
    """Where the bad value comes from that the last operations read or made, newest first: one of them was too much."""
    for record in reversed(trace.records[-LAST_OPERATIONS:]):
        given = _bad(trace, record.reads)
        if given:
            return find_bad_origin(trace, given)
        made = _bad(trace, record.writes)
        if made and record.op not in WRITES_CONSTANTS:
            return BadOrigin(record, is_nan=math.isnan(trace.value(made[0])))
    return None


def _bad(trace: Trace, touches: Sequence[Touch]) -> list[Touch]:
    """The NaNs among these, or else the positive infinities."""
    nans = [touch for touch in touches if math.isnan(trace.value(touch))]
    return nans or [touch for touch in touches if trace.value(touch) == math.inf]


def _failed_factorization(trace: Trace) -> BadOrigin | None:
    """The last operation that was given a matrix: torch raised about what it made."""
    last = (r for r in reversed(trace.records[-LAST_OPERATIONS:]) if r.op not in _AFTER_A_FACTORIZATION)
    record = next(last, None)
    return BadOrigin(record) if record is not None and any(len(t.shape) > 1 for t in record.reads) else None


class _CrashCase(DiagnosisCase):
    """Like any other case, but that every replay of the untreated step raises."""

    def __init__(self, replayable: Replayable, exam: Examination, error: BaseException) -> None:
        super().__init__(replayable, Suspicion(symptom="nan_loss", step=replayable.facts.step, kind="non_finite"))
        self.exam = exam
        first = str(error).strip().splitlines()[:1]
        self.notes.append(f"raised {type(error).__name__}: {(first or [''])[0][:200]}")

    def _look(self) -> tuple[Evidence, Origin | None]:
        assert self.exam is not None
        return collect_evidence(self.replayable, self.exam, self.suspicion)

    def _rows(self, evidence: Evidence, origin: Origin | None, cause: str, depth: str) -> BadRows:
        assert self.exam is not None
        if origin is not None and origin.phase == "data":
            return super()._rows(evidence, origin, cause, depth)
        return BadRows(rows=rows_without_proof(self.exam, self._batch, self.replayable.facts.select_rows))
