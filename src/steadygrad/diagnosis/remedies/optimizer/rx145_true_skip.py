"""Take no step at all for a batch with a bad gradient.

What it sees
    Gradients that were neutralised while momentum moved the weights, or buffers that a skipped batch had written
    to.

Why it hurts
    Zeroing is not skipping, and a forward pass leaves traces in buffers.

Smallest example
    if bad: optimizer.zero_grad(); continue  # and restore running statistics
    # instead of
    if bad: torch.nan_to_num_(p.grad)
    optimizer.step()

What to do
    Skip the optimizer step, and restore the buffers from before the forward.

Safety
    Exact: as if the batch had never come.

References
    https://github.com/pytorch/pytorch/issues/1206
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.batch_changes import TrueSkip
from ...interventions.optimizer_changes import WithoutZeroGradients
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX145", "true_skip", "Take no step at all for a batch with a bad gradient.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if (
        context.evidence.kind == "neutralised"
        and context.suspicion is not None
        and context.suspicion.detail == "zeroed"
    ):
        yield Proposal(
            code=RULE.code,
            slug="true_skip",
            change=f".grad of {context.evidence.names[0]} and similar parameters set to None instead of zero",
            make=lambda: WithoutZeroGradients(context.evidence.names),
            safety="exact",
        )
    elif context.evidence.kind == "neutralised":
        yield Proposal(
            code=RULE.code, slug="true_skip", change="no step for a bad gradient", make=TrueSkip, safety="exact"
        )
