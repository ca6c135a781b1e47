"""What keeps a diagnosis from harming the training process: limits on time and memory, and one way to give up.

`isolated` is the only way into a diagnosis. Whatever goes wrong inside comes back as a diagnosis that says "not
diagnosed" and why. The one exception is `NotRestored`: if the state of the run cannot be restored, training must not go
on with what the diagnosis left behind.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...engine.record.diagnosis_time import MOST_SECONDS, DiagnosisTime
from ...engine.record.run_log import RunLog
from ...engine.recovery.preserved_attributes import preserved_attributes
from ...engine.recovery.reruns.quiet import quiet
from ...engine.recovery.reruns.sinks import HasEffect
from ...records import Diagnosis
from ...records.errors import SteadyError, UsageError
from ...records.rerun_flag import rerun
from .device_memory import (
    bytes_of,
    forget,
    has_room,
    is_out_of_memory,
    release_memory,
    shortage,
    spare_by_device,
    taken_apart,
)

logger = logging.getLogger("steadygrad")
T = TypeVar("T")
_REFUSES_HOOKS = "support saved tensor hooks"


class OutOfTime(BaseException):
    """The time of this diagnosis is used up. No Exception: what a trial catches from the user's code is not this."""


class NotRestored(SteadyError):
    """The state of the run could not be restored after a diagnosis."""


@dataclass(slots=True)
class ResourceLimits:
    """What one diagnosis may use. `lean` means: keep no tensors on the device that are not needed now. `least`
    means: run nothing either that is not needed to name the origin, and where the step does not fit, a part of it."""

    seconds: float = MOST_SECONDS
    lean: bool = False
    least: bool = False
    hooks_refused: bool = False
    """Whether the program's step forbids hooks on what is kept for backward, as `torch.func.grad` does."""
    shortage: str = ""
    """What was needed and what was free where memory did not suffice."""
    free: dict[torch.device, int] = field(default_factory=dict)
    """What the limited devices could give when the diagnosis began."""
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def offloads(self) -> bool:
        """Whether what a forward keeps for backward lies on the host until then."""
        return self.lean and not self.hooks_refused

    def check(self) -> None:
        """Raise OutOfTime when the time is used up. Called before every replay."""
        if self.elapsed > self.seconds:
            raise OutOfTime

    def stopped(self, untried: Sequence[str] = ()) -> str:
        """One clause about what was not done any more for want of time."""
        left = f"not tried: {', '.join(untried)}: " if untried else ""
        limit = f"time limit of {self.seconds:.3g} s" if self.seconds else "time limit of all diagnoses of the run"
        return f"{left}{limit} reached"


_current: ContextVar[ResourceLimits | None] = ContextVar("limits of the diagnosis", default=None)


def limits() -> ResourceLimits:
    """The limits in force; outside of a diagnosis there are none."""
    return _current.get() or ResourceLimits(seconds=float("inf"))


@contextmanager
def limited(given: ResourceLimits) -> Iterator[ResourceLimits]:
    token = _current.set(given)
    try:
        yield given
    finally:
        _current.reset(token)


@contextmanager
def for_incident(log: RunLog, kept: DiagnosisTime | None = None) -> Iterator[ResourceLimits]:
    """Around everything that is done because of one incident of a run: it has one limit, and counts for the limit of
    all. `kept` is the time of a program with several runs. That the time is up is never raised beyond this."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    account = kept or log.diagnosis_time
    with contextlib.suppress(OutOfTime), account.counted(), limited(ResourceLimits(account.allowed(log.recent))) as own:
        yield own


def isolated(
    symptom: str,
    attempt: Callable[[str], Diagnosis],
    *,
    depth: str,
    preserve: Iterable[Any] = (),
) -> Diagnosis:
    """A diagnosis by `attempt(depth)` that can only end in an answer. Out of memory, it is tried once more with the
    least that names the origin; then the answer says what it would have needed.

    `preserve` are objects whose plain attributes are as before when this returns. Raises SteadyError only: other ranks
    that are gone, or a state that could not be restored. Inside `for_incident` the limit is that of the incident.
    """
    own = replace(_current.get() or ResourceLimits())
    with rerun(), limited(own), preserved_attributes(preserve), taken_apart():
        answer = _attempt(symptom, attempt, depth)
        first = own.shortage
        if answer is None:
            own.lean = own.least = True
            answer = _attempt(symptom, attempt, "origin")
        if answer is None:
            return not_diagnosed(symptom, own.shortage)
        if own.least:
            note = f"less was tried than usual: the first attempt ran out of memory{_of(first)}"
            return replace(answer, notes=(*answer.notes, note))
        if own.lean:
            note = f"what was not needed at the moment lay on the host{_of(first)}"
            return replace(answer, notes=(*answer.notes, note))
        return answer


def _of(shortage: str) -> str:
    return f" ({shortage})" if shortage and shortage != "out of memory" else ""


def _attempt(symptom: str, attempt: Callable[[str], Diagnosis], depth: str) -> Diagnosis | None:
    """One attempt; None where memory ran out, which has been given back by then."""
    own = limits()
    try:
        with quiet():
            return attempt(depth)
    except UsageError as error:  # what the step gave when it was run again is no loss
        return not_diagnosed(symptom, f"run again, the step did not do the same ({in_a_line(error)})")
    except SteadyError:
        raise
    except OutOfTime:
        return not_diagnosed(symptom, own.stopped())
    except HasEffect as effect:
        return not_run_again(symptom, effect)
    except Exception as error:
        refused = own.offloads and _REFUSES_HOOKS in str(error)
        if not refused and not is_out_of_memory(error):
            logger.debug("the diagnosis failed", exc_info=error)
            return not_diagnosed(symptom, f"the diagnosis itself failed ({in_a_line(error)})")
        own.hooks_refused = own.hooks_refused or refused
        ran_out(error)
    release_memory()
    return _attempt(symptom, attempt, depth) if refused else None


def ran_out(error: BaseException) -> None:
    """Note what was needed, and let go of all that the exception holds."""
    own = limits()
    own.shortage = shortage(error, own.free)
    forget(error)


def within_memory(work: Callable[[], T]) -> T | None:
    """None where memory runs out; it has been given back by then."""
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        ran_out(error)
    release_memory()
    return None


def not_diagnosed(symptom: str, why: str) -> Diagnosis:
    """The answer where there is none."""
    return Diagnosis(symptom=symptom or "none", phase="none", because=f"not diagnosed: {why}")


def not_run_again(symptom: str, effect: HasEffect | str) -> Diagnosis:
    """The answer where the program's step does what could not be undone."""
    return not_diagnosed(symptom, f"running the step again would have an effect: {effect}")


def in_a_line(error: BaseException, most: int = 160) -> str:
    """An exception in one line: its class and the beginning of what it says."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:most].rstrip(": ")


def fits(tensors: Sequence[Tensor], *, beside_a_step: bool = False) -> bool:
    """Whether a copy of these tensors can stay on their devices."""
    needed: dict[torch.device, int] = {}
    for tensor in tensors:
        needed[tensor.device] = needed.get(tensor.device, 0) + bytes_of(tensor)
    return not limits().lean and has_room(needed, beside_a_step=beside_a_step)


def fits_instead_of_a_step(size: int, tensors: Iterable[Tensor]) -> bool:
    """Whether a run that takes so many bytes can be made on any device of these tensors."""
    return not limits().lean and all(size <= free for free in spare_by_device(tensors).values())


def fits_beside_a_step(size: int, tensors: Iterable[Tensor]) -> bool:
    """Whether so many bytes can be taken on any device of these tensors, beside a training step."""
    return not limits().lean and has_room({tensor.device: size for tensor in tensors}, beside_a_step=True)
