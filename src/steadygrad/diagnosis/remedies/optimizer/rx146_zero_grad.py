"""Clear leftover gradients before the step.

What it sees
    A gradient that was bad before backward began.

Why it hurts
    backward adds to what is there, and NaN plus anything is NaN.

Smallest example
    optimizer.zero_grad(set_to_none=True)
    # instead of
    if bad: continue  # and the bad gradients stay

What to do
    Clear gradients after every skipped or foreign backward.

Safety
    Exact.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.optimizer_changes import ClearGradients
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX146", "zero_grad", "Clear leftover gradients before the step.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if any(kind == "grad" for kind, _ in context.evidence.bad_before):
        yield Proposal(
            code=RULE.code, slug="zero_grad", change="leftover gradients cleared", make=ClearGradients, safety="exact"
        )
