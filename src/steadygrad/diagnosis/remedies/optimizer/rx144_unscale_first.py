"""Remove the loss scale once, before clipping.

What it sees
    Gradients that enter the optimizer at another size than the loss gave them.

Why it hurts
    Clipping scaled gradients to 1 and unscaling afterwards leaves 1/scale.

Smallest example
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    # instead of
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # still scaled
    scaler.step(optimizer)

What to do
    Call unscale_ exactly once per step, first.

Safety
    Exact: the arithmetic that was meant.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.optimizer_changes import UnscaleFirst
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX144", "unscale_first", "Remove the loss scale once, before clipping.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.evidence.kind == "mis_sized":
        yield Proposal(
            code=RULE.code,
            slug="unscale_first",
            change="scale removed once, then clip, then step",
            make=UnscaleFirst,
            safety="exact",
        )
