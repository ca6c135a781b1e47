"""What keeps a diagnosis from harming the training process: limits on time and memory, and one way to give up.

`isolated` is the only way into a diagnosis. Whatever goes wrong inside comes back as a diagnosis that says "not
diagnosed" and why. The one exception is `NotRestored`: if the state of the run cannot be restored, training must not go
on with what the diagnosis left behind.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...engine.record.diagnosis_time import MOST_SECONDS, DiagnosisTime
from ...engine.record.run_log import RunLog
from ...engine.recovery.preserved_attributes import preserved_attributes
from ...engine.recovery.reruns.quiet import quiet
from ...records import Diagnosis
from ...records.errors import SteadyError
from ...records.rerun_flag import rerun

logger = logging.getLogger("steadygrad")

SPARE = 2
"""A copy of the state stays on the device only where so many times its size is free there."""


class OutOfTime(BaseException):
    """The time of this diagnosis is used up. No Exception: what a trial catches from the user's code is not this."""


class NotRestored(SteadyError):
    """The state of the run could not be restored after a diagnosis."""


@dataclass(slots=True)
class ResourceLimits:
    """What one diagnosis may use. `lean` means: keep no tensors on the device that are not needed."""

    seconds: float = MOST_SECONDS
    lean: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

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
    """A diagnosis by `attempt(depth)` that can only end in an answer. Out of memory, it is tried once more with less.

    `preserve` are objects whose plain attributes are as before when this returns. Raises SteadyError only: other ranks
    that are gone, or a state that could not be restored. Inside `for_incident` the limit is that of the incident.
    """
    own = replace(_current.get() or ResourceLimits())
    with rerun(), limited(own), preserved_attributes(preserve):
        answer = _attempt(symptom, attempt, depth)
        if answer is None:
            own.lean = True
            answer = _attempt(symptom, attempt, "origin")
        if answer is None:
            return not_diagnosed(symptom, "out of memory")
        lean = ("less was tried than usual: the first attempt ran out of memory",) if own.lean else ()
        return _with_notes(answer, lean)


def _with_notes(answer: Diagnosis, notes: tuple[str, ...]) -> Diagnosis:
    return replace(answer, notes=(*answer.notes, *notes)) if notes else answer


def _attempt(symptom: str, attempt: Callable[[str], Diagnosis], depth: str) -> Diagnosis | None:
    """One attempt; None where memory ran out, which has been given back by then."""
    try:
        with quiet():
            return attempt(depth)
    except SteadyError:
        raise
    except OutOfTime:
        return not_diagnosed(symptom, limits().stopped())
    except Exception as error:
        if not is_out_of_memory(error):
            logger.debug("the diagnosis failed", exc_info=error)
            return not_diagnosed(symptom, f"the diagnosis itself failed ({in_a_line(error)})")
        forget(error)
    release_memory()
    return None


def not_diagnosed(symptom: str, why: str) -> Diagnosis:
    """The answer where there is none."""
    return Diagnosis(symptom=symptom or "none", phase="none", because=f"not diagnosed: {why}")


def in_a_line(error: BaseException, most: int = 160) -> str:
    """An exception in one line: its class and the beginning of what it says."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:most].rstrip(": ")


# -- memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or the one behind it, says that memory ran out on any device."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError | torch.OutOfMemoryError):
            return True
        said = str(current)
        if isinstance(current, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY):
            return True
        current = current.__cause__ or current.__context__
    return False


_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def forget(error: BaseException) -> None:
    """Let go of everything an exception keeps alive: the frames it went through hold whole forward passes."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += [current.__cause__, current.__context__]
        if current.__traceback__ is not None:
            traceback.clear_frames(current.__traceback__)
        current.__traceback__ = current.__cause__ = current.__context__ = None


def release_memory() -> None:
    """Give unused memory back, on the host and on a CUDA device that is in use."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def spare_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a CUDA device, the allocator's own free blocks included; None elsewhere."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)(device)
    allowed = int(fraction * total) - reserved
    return max(0, min(free, allowed)) + reserved - torch.cuda.memory_allocated(device)


def fits(tensors: Sequence[Tensor]) -> bool:
    """Whether a copy of these tensors can stay on their devices beside a training step."""
    if limits().lean:
        return False
    needed: dict[torch.device, int] = {}
    for tensor in tensors:
        needed[tensor.device] = needed.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
    spare = {device: spare_memory(device) for device in needed}
    return all(free is None or SPARE * needed[device] <= free for device, free in spare.items())


def copied(tensor: Tensor) -> Tensor:
    """A copy on the same device."""
    return tensor.detach().clone()


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy that takes no device memory."""
    return tensor.detach().to("cpu", copy=True)
