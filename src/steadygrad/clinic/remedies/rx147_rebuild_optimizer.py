"""Give the missing parameters to the optimizer.

What it sees
    Trainable parameters with gradients that no optimizer holds.

Why it hurts
    They were replaced or unfrozen after the optimizer had been built.

Smallest example
    optimizer.add_param_group({"params": model.head.parameters()})

What to do
    Build the optimizer after the model is final, or add the group.

Safety
    Behavioural: more parameters learn.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..surgery.optimizer import AddParameters
from ..ward import Proposal, Ward

RULE = Rule("RX147", "rebuild_optimizer", "Give the missing parameters to the optimizer.")


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.evidence.kind == "outside_optimizer":
        names = ward.evidence.names
        yield Proposal(
            code=RULE.code,
            slug="rebuild_optimizer",
            change=f"{len(names)} parameters added to the optimizer",
            make=lambda: AddParameters(names),
        )
