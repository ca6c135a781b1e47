"""What the judges of sampled steps share. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...policy import Policy
from ...records import Finding, Severity
from ...records.rules import Rule
from ..make_finding import listed
from ..observations.step_observation import ActivationNumbers as ActivationNumbers
from ..observations.step_observation import StepObservation as StepObservation
from ..observations.step_observation import TensorNumbers as TensorNumbers

HALF = ("float16", "bfloat16")
_NAMED = 16


Judge = Callable[[Sequence[StepObservation], Policy], Finding | None]


FIRST_UPDATES = 4


def warming_up(samplings: Sequence[StepObservation], count: int) -> bool:
    """Whether the learning rate has grown over the last `count` samplings: what does not move yet may do so soon."""
    last = [sampling for sampling in samplings if sampling.measured][-count:]
    rates = [max((tensor.lr for tensor in sampling.tensors), default=0.0) for sampling in last]
    return len(rates) > 1 and rates[-1] > 1.01 * rates[0]


def not_begun(samplings: Sequence[StepObservation], count: int) -> bool:
    """Whether the last `count` samplings are of the first updates and no tensor at all moved in them: some optimizers
    only gather statistics at first."""
    last = [sampling for sampling in samplings if sampling.measured][-count:]
    early = bool(last) and last[-1].step < FIRST_UPDATES
    return early and not any(tensor.num_moved for sampling in last for tensor in sampling.tensors)


def in_all(
    samplings: Sequence[StepObservation], count: int, pick: Callable[[StepObservation], Iterable[TensorNumbers]]
) -> list[TensorNumbers]:
    """The tensors that `pick` finds in each of the last `count` measured samplings, as they are in the last one."""
    last = [sampling for sampling in samplings if sampling.measured][-count:]
    if len(last) < count:
        return []
    names = set.intersection(*({tensor.name for tensor in pick(sampling)} for sampling in last))
    return [tensor for tensor in last[-1].tensors if tensor.name in names]


def about(
    rule: Rule, sampling: StepObservation, severity: Severity, names: Iterable[str], detail: str, **evidence: Any
) -> Finding:
    """A finding of `rule` on these tensors or modules; `detail` goes on after their names."""
    named = list(names)
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=severity,
        step=sampling.step,
        subject=named[0] if named else "",
        detail=f"{listed(named)} {detail}",
        evidence={"names": named[:_NAMED], "num_names": len(named), **evidence},
    )
