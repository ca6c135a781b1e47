"""Runs one regime with one seed, plain once per baseline and guarded at each entry point."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from steadygrad import UsageError

from .check import disturbances, omissions, unreported
from .devices import CPU, chosen_device
from .entry_points import PLAIN, EntryPoint, entry_point
from .observed import Observed
from .plain_loop import run_loop
from .programs import Builder
from .results import ACTED, AS_MEANT, DISTURBED, FAILED, LEFT_ALONE, MISSED, NOT_APPLICABLE, Result, code_digest
from .sick import DIVERGING, POISONED, SICK_STEPS
from .state import State, bad_values, state_of
from .training import Training


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The run without a guard that others are compared with."""

    state: State
    bad: list[str]
    healthy: bool
    loss: tuple[float | None, float | None]
    seconds: float


def kind_of(name: str) -> str:
    return "poisoned" if name in POISONED else "diverging" if name in DIVERGING else "healthy"


def steps_of(name: str, steps: int) -> int:
    """How many updates a run has: sick twins have a length that fits what goes wrong in them."""
    return steps if kind_of(name) == "healthy" else SICK_STEPS


def soak(name: str, seed: int, entry_points: Sequence[str], steps: int) -> Iterator[Result]:
    """The results of one regime, as they come."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    builder = Builder(name, seed)
    if reason := why_not_there(builder, steps):
        yield from (_left_out(each, builder, steps, reason) for each in entry_points)
        return
    alone = run_plainly(builder, steps)
    states: dict[str, tuple[State, float]] = {"loop": (alone.state, alone.seconds)}
    for each in entry_points:
        if each == PLAIN:
            yield _plain_result(builder, steps, alone)
            continue
        yield _at(entry_point(each), each, builder, steps, alone, states)


def run_plainly(build: Callable[[], Training], steps: int) -> Plain:
    """The plain loop, with every loss looked at."""
    training = build()
    start = time.perf_counter()
    losses = list(run_loop(training, steps))
    seconds = time.perf_counter() - start
    tenth = max(1, steps // 10)
    bad = bad_values(training)
    return Plain(
        state=state_of(training),
        bad=bad,
        healthy=not bad and all(map(math.isfinite, losses)),
        loss=(_mean(losses[:tenth]), _mean(losses[-tenth:])),
        seconds=seconds,
    )


def _mean(losses: list[float]) -> float | None:
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else None


def why_not_there(builder: Builder, steps: int) -> str | None:
    """Why a regime says nothing on another device than the CPU it is written for."""
    if chosen_device() == CPU:
        return None
    try:
        once, again = run_plainly(builder, steps), run_plainly(builder, steps)
    except Exception as error:
        return f"does not run on {chosen_device()}: {_first_sentence(error)[:80]}"
    if once.state != again.state:
        return "two plain runs differ on this device"
    return None if once.healthy or kind_of(builder.name) != "healthy" else "not healthy on this device"


def _left_out(entry: str, builder: Builder, steps: int, reason: str) -> Result:
    kind = kind_of(builder.name)
    return Result(
        regime=builder.name, seed=builder.seed, entry_point=entry, kind=kind, steps=steps, code=code_digest(),
        status=NOT_APPLICABLE, why=reason,
    )  # fmt: skip


def _plain_result(builder: Builder, steps: int, alone: Plain) -> Result:
    """Whether a regime stays finite by itself, as a healthy one must and a poisoned one must not."""
    kind = kind_of(builder.name)
    good = not alone.healthy if kind == "poisoned" else alone.healthy
    why = "" if good else "every value stayed finite" if alone.healthy else "a value was not finite"
    return Result(
        regime=builder.name, seed=builder.seed, entry_point=PLAIN, kind=kind, steps=steps, loss=alone.loss,
        code=code_digest(),
        status=AS_MEANT if good else FAILED, why=why, plain_healthy=alone.healthy, plain_s=alone.seconds,
    )  # fmt: skip


def _at(
    entry: EntryPoint, name: str, builder: Builder, steps: int, alone: Plain, states: dict[str, tuple[State, float]]
) -> Result:
    result = Result(
        regime=builder.name, seed=builder.seed, entry_point=name, kind=kind_of(builder.name), steps=steps,
        loss=alone.loss, plain_healthy=alone.healthy, code=code_digest(),
    )  # fmt: skip
    if reason := entry.why_not(builder()):
        result.status, result.why = NOT_APPLICABLE, reason
        return result
    try:
        if entry.BASELINE not in states and result.kind == "healthy":
            start = time.perf_counter()
            states[entry.BASELINE] = entry.plain(builder, steps), time.perf_counter() - start
        start = time.perf_counter()
        observed = entry.guarded(builder, steps)
    except Exception as error:
        if isinstance(error, UsageError) and builder().closure:
            result.status, result.why = NOT_APPLICABLE, f"refused at the start: {_first_sentence(error)}"
            return result
        result.why = f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
        return result
    result.guarded_s = time.perf_counter() - start
    plain, result.plain_s = states.get(entry.BASELINE, (alone.state, alone.seconds))
    return _judged(result, observed, plain, alone.bad)


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].rstrip(".")


def _judged(result: Result, observed: Observed, plain: State, plain_bad: list[str]) -> Result:
    result.guarded = observed.counts.get("steps", 0)
    result.overflows = observed.counts.get("overflows", 0)
    result.warnings = {**observed.findings, **observed.messages}
    if result.kind == "healthy":
        found, good, wrong = disturbances(plain, observed, result.steps), LEFT_ALONE, DISTURBED
    elif result.kind == "poisoned":
        found, good, wrong = omissions(plain_bad, observed), ACTED, MISSED
    else:
        found, good, wrong = unreported(observed), ACTED, MISSED
    result.status, result.why = (wrong if found else good), "; ".join(found)
    assert result.status != FAILED
    return result
