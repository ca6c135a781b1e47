"""A parameter gets gradients and updates, and stays the same.

What it sees
    In three samplings in a row no sampled element with a gradient changed, though the learning rate is above zero,
    the gradient is no rounding noise, and the precision is not the reason.

Why it hurts
    Something undoes or ignores the update: a hook, a weight that is overwritten each step, an optimizer that steps
    a copy, a learning rate lost in a parameter group.

Smallest example
    optimizer.step(); model.load_state_dict(start)   # every step
    # fixed
    model.load_state_dict(start)   # once, before the loop
    optimizer.step()

What to do
    Look for what writes to the parameter besides the optimizer, and print the learning rate of its group.

Safety
    It changes nothing. Only elements with a gradient count, so unused rows of an embedding do not.

References
    https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ...observations.observed_run import PATIENCE, ObservedRun, Suspicion
from ...observations.step_observation import owner, reached
from ..sample_helpers import HALF, StepObservation, TensorNumbers, about, in_all, not_begun, warming_up
from .lost_update import RULE as LOST_UPDATE

RULE = Rule("SY406", "parameter_never_changes", "A parameter gets gradients and updates, and stays the same.")
_SAMPLINGS = 3
NOISE = {"float16": 1e-4, "bfloat16": 1e-3}
"""Gradients this much smaller than their neighbours' are rounding: where the true one is zero (a bias in front of a
normalisation) there is nothing to learn. Elsewhere 1e-5."""
_QUIET = 1e-3  # below, a gradient may be rounding: a key's bias in attention has none in exact arithmetic


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at plain numbers."""
    moved = _moved_between(samplings)
    stuck = [tensor for tensor in in_all(samplings, _SAMPLINGS, _stuck) if tensor.name not in moved]
    if not stuck or warming_up(samplings, _SAMPLINGS) or not_begun(samplings, _SAMPLINGS):
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in stuck],
        f"received gradients in {_SAMPLINGS} sampled steps and never changed",
        lr=stuck[0].lr,
        grad_absmax=stuck[0].grad_absmax,
    )


def _moved_between(samplings: Sequence[StepObservation]) -> set[str]:
    """The tensors that moved at an earlier sampling, or between two: they do change, and may have converged."""
    seen = [tensor for sampling in samplings if sampling.measured for tensor in sampling.tensors]
    norms: dict[str, float] = {}
    return {t.name for t in seen if t.num_moved or norms.setdefault(t.name, t.weight_norm) != t.weight_norm}


def suspect(run: ObservedRun, *, ended: bool = False) -> Suspicion | None:
    """Over steps in a row: gradients arrive, updates are made, and a whole tensor never changes a bit.

    Where only a few tensors of a half-precision model stand still (gains near one) and the loss falls, the model learns
    all the same; that is reported only at the end and only if nothing was learned. A few tensors in full precision are
    reported at the end: a warm-up begins with steps that a gain of one cannot take.
    """
    still = standing_still(run)
    if not still:
        return None
    first = run.with_update()[0]
    low = all(first.dtypes.get(name) in HALF for name in still)
    most = 2 * len(still) >= len(reached(first))
    if not most and not low:
        still = _alone_in_their_module(still, first)  # a bias may have no slope but rounding: in front of a norm, say
    if still and (most or (ended and not (low and _improved(run)))):
        code = LOST_UPDATE.code if low else RULE.code
        return Suspicion(symptom="silent", step=first.step, kind="unmoved", names=still, code=code)
    return None


def conclude(run: ObservedRun) -> Suspicion | None:
    """The same at the end of the steps."""
    return suspect(run, ended=True)


def standing_still(run: ObservedRun) -> tuple[str, ...]:
    """Tensors that a gradient above rounding reached in every step, and that never changed a bit."""
    steps = run.with_update()
    if len(steps) < PATIENCE or steps[-1].rate > 1.01 * steps[-PATIENCE].rate:
        return ()  # too early to tell, or the rate still grows
    moving = frozenset.intersection(*(observed.rated for observed in steps))
    first, held = steps[0], reached(steps[0])
    still = [name for name in held if name in moving and all(_stood_still(observed, name) for observed in steps)]
    largest = max((observed.entering.get(name, 0.0) for observed in steps for name in held), default=0.0)
    return tuple(n for n in still if first.entering[n] > NOISE.get(first.dtypes.get(n, ""), 1e-5) * largest)


def standing_apart(run: ObservedRun) -> tuple[str, ...]:
    """Of the tensors that stand still, those in whose module nothing moves, and that are no gains near one."""
    still = standing_still(run)
    return _alone_in_their_module(still, run.with_update()[0]) if still else ()


def _stood_still(observed: StepObservation, name: str) -> bool:
    return observed.updates.get(name, 1.0) == 0.0 and observed.entering.get(name, 0.0) > 0


def _alone_in_their_module(still: tuple[str, ...], observed: StepObservation) -> tuple[str, ...]:
    moving = {owner(name) for name in set(reached(observed)).difference(still)}
    gains = {name for name in still if all(abs(value - 1.0) < 0.05 for value in observed.samples.get(name, ()))}
    return tuple(name for name in still if owner(name) not in moving and name not in gains)


def _improved(run: ObservedRun) -> bool:
    losses = [observed.loss for observed in run.steps if math.isfinite(observed.loss)]
    third = max(1, len(losses) // 3)
    return sum(losses[-third:]) < 0.98 * sum(losses[:third])


def _stuck(sampling: StepObservation) -> list[TensorNumbers]:
    quiet = _QUIET * sampling.loudest
    full = [t for t in sampling.tensors if t.dtype not in HALF and not t.has_master and t.in_optimizer and t.lr > 0.0]
    return [t for t in full if t.num_live > 0 and t.num_moved == 0 and t.grad_absmax > quiet]


def _run(num_live: int) -> list[StepObservation]:
    stuck = TensorNumbers(name="embed", lr=1e-3, grad_absmax=0.1, num_sampled=64, num_live=num_live)
    return [StepObservation(step=step, tensors=(stuck,)) for step in (1, 2, 5)]


def SPECIMEN() -> list[StepObservation]:
    return _run(num_live=32)


def NEAR_MISS() -> list[StepObservation]:
    """The sampled rows of the embedding were not in any of the batches."""
    return _run(num_live=0)
