"""A trainable parameter is in no optimizer.

What it sees
    It requires a gradient, but no optimizer the guard was given holds it.

Why it hurts
    Backward computes its gradient every step and nobody uses it. The usual cause is a layer added or replaced after
    the optimizer was built.

Smallest example
    optimizer = torch.optim.AdamW(model.parameters()); model.head = torch.nn.Linear(64, 10)

What to do
    Build the optimizer last, or add the parameter with `add_param_group`. If it is not meant to be trained, freeze
    it: that saves its gradient, too. If another optimizer trains it, give the guard both.

Safety
    It changes nothing; it is known before the first step.

References
    https://docs.pytorch.org/docs/stable/optim.html#constructing-it
"""

from __future__ import annotations

from collections.abc import Sequence

from ...policy import Policy
from ...records import Finding, Severity
from ...rules import Rule
from .sampling import Sampling, TensorVitals, about

RULE = Rule("SY405", "parameter_not_in_optimizer", "A trainable parameter is in no optimizer.")


def judge(samplings: Sequence[Sampling], policy: Policy) -> Finding | None:
    """Pure; looks at the last sampling only, measured or not."""
    orphans = _orphans(samplings[-1])
    if not orphans:
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in orphans],
        f"require a gradient but are in no optimizer ({len(orphans)} of {len(samplings[-1].tensors)} tensors)",
        num_elements=sum(tensor.numel for tensor in orphans),
    )


def _orphans(sampling: Sampling) -> list[TensorVitals]:
    return [tensor for tensor in sampling.tensors if tensor.trainable and not tensor.in_optimizer]


def _setup(trainable: bool) -> list[Sampling]:
    head = TensorVitals(name="head")
    backbone = TensorVitals(name="backbone", trainable=trainable, in_optimizer=False)
    return [Sampling(step=0, tensors=(head, backbone), measured=False)]


def SPECIMEN() -> list[Sampling]:
    return _setup(trainable=True)


def NEAR_MISS() -> list[Sampling]:
    """Frozen, and left out of the optimizer, as it should be."""
    return _setup(trainable=False)
