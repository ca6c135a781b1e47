"""A trainable parameter is in no optimizer.

What it sees
    It gets a gradient in two samplings in a row and stays the same, and no optimizer holds it. Parameters of a
    criterion outside of the model are seen where the graph of a loss leads to them.

Why it hurts
    Backward computes its gradient every step and nothing uses it. The usual cause is a layer added or replaced after
    the optimizer was built.

Smallest example
    optimizer = torch.optim.AdamW(model.parameters()); model.head = torch.nn.Linear(64, 10)
    # fixed
    model.head = torch.nn.Linear(64, 10); optimizer = torch.optim.AdamW(model.parameters())

What to do
    Build the optimizer last, or add the parameter with `add_param_group`. If it is not meant to be trained, freeze
    it: that saves its gradient, too. If another optimizer trains it, give the guard both.

Safety
    It changes nothing. A parameter that the loss does not depend on, and one that is written between the steps (a
    copy of weights that are trained in higher precision), are not reported.

References
    https://docs.pytorch.org/docs/stable/optim.html#constructing-it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ...observations.observed_run import ObservedRun, Suspicion
from ..sample_helpers import StepObservation, TensorNumbers, about, in_all

RULE = Rule("SY405", "parameter_not_in_optimizer", "A trainable parameter is in no optimizer.")
_SAMPLINGS = 2


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure."""
    orphans = in_all(samplings, _SAMPLINGS, _orphans)
    before = {tensor.name: tensor.weight_norm for tensor in samplings[-2].tensors} if orphans else {}
    orphans = [tensor for tensor in orphans if tensor.weight_norm == before.get(tensor.name)]
    if not orphans:
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in orphans],
        f"get a gradient but are in no optimizer ({len(orphans)} of {len(samplings[-1].tensors)} tensors)",
        num_elements=sum(tensor.numel for tensor in orphans),
    )


def of_leaves(leaves: Sequence[tuple[str, int]], num_leaves: int, **evidence: Any) -> Finding | None:
    """From the graph of a loss: parameters, by name and number of elements, that backward reaches and no optimizer
    holds. They may belong to a criterion that is no part of the model."""
    if not leaves:
        return None
    return about(
        RULE,
        StepObservation(),
        Severity.WARNING,
        [name for name, _ in leaves],
        f"take part in the loss but are in no optimizer ({len(leaves)} of {num_leaves} parameters that it depends on)",
        num_elements=sum(size for _, size in leaves),
        **evidence,
    )


def suspect(run: ObservedRun) -> Suspicion | None:
    """Over steps in a row: it had a gradient in each of the last three, and nothing else moves it."""
    last = run.recent()
    if not last or not run.last.has_optimizer:
        return None
    outside = sorted(set(run.last.trainable) - run.last.held)
    starved = [name for name in outside if all(observed.gradient_norm(name) > 0 for observed in last)]
    # One that moves between the steps is trained by another: a second optimizer, an average.
    starved = [name for name in starved if not any(name in observed.written for observed in run.steps)]
    starved += run.last.strays
    if not starved:
        return None
    return Suspicion(
        symptom="silent", step=last[0].step, kind="outside_optimizer", names=tuple(starved), code=RULE.code
    )


def _orphans(sampling: StepObservation) -> list[TensorNumbers]:
    loose = [tensor for tensor in sampling.tensors if tensor.trainable and not tensor.in_optimizer]
    return [tensor for tensor in loose if tensor.has_gradient and tensor.grad_absmax > 0]


def _run(*weight_norms: float) -> list[StepObservation]:
    head = TensorNumbers(name="head")
    outside = TensorNumbers(name="backbone", in_optimizer=False, has_gradient=True, grad_absmax=0.1)
    return [
        StepObservation(step=step, tensors=(head, replace(outside, weight_norm=norm)))
        for step, norm in enumerate(weight_norms)
    ]


def SPECIMEN() -> list[StepObservation]:
    return _run(1.0, 1.0)


def NEAR_MISS() -> list[StepObservation]:
    """Something else moves it: the program copies weights of higher precision into it."""
    return _run(1.0, 1.1)
