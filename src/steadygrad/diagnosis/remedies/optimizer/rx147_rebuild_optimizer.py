"""Give the missing parameters to the optimizer.

What it sees
    Trainable parameters with gradients that no optimizer holds.

Why it hurts
    They were replaced or unfrozen after the optimizer had been built.

Smallest example
    optimizer.add_param_group({"params": model.head.parameters()})
    # instead of
    optimizer = AdamW(model.parameters()); model.head = nn.Linear(64, 10)

What to do
    Build the optimizer after the model is final, or add the group.

Safety
    Behavioural: more parameters learn.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.optimizer_changes import AddParameters, AdoptStrays
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX147", "rebuild_optimizer", "Give the missing parameters to the optimizer.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.evidence.kind == "outside_optimizer":
        known = {name for name, _ in context.replayable.model.named_parameters()}
        names = tuple(name for name in context.evidence.names if name in known)
        strays = tuple(name for name in context.evidence.names if name not in known)
        if names:
            yield Proposal(
                code=RULE.code,
                slug="rebuild_optimizer",
                change=f"{len(names)} parameters added to the optimizer",
                make=lambda: AddParameters(names),
            )
        if strays:
            yield Proposal(
                code=RULE.code,
                slug="rebuild_optimizer",
                change=f"{strays[0]}{' and others' if len(strays) > 1 else ''} registered and added to the optimizer",
                make=lambda: AdoptStrays(strays),
                code_change="keep layers in nn.ModuleList or nn.ModuleDict, parameters in nn.ParameterList",
            )
