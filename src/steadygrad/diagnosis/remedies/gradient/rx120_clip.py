"""Clip the gradient norm.

What it sees
    Any step with a bad or exploding gradient; it is what people try first.

Why it hurts
    Clipping divides by the norm. With a NaN in it every gradient becomes NaN; with an inf the finite ones become
    zero.

Smallest example
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    # instead of
    optimizer.step()  # whatever the norm is

What to do
    Clip against explosions of finite gradients. It does not repair a non-finite one.

Safety
    Behavioural.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.batch_changes import Clip
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX120", "clip", "Clip the gradient norm.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if not context.silent or (context.evidence.kind == "spike" and context.evidence.phase == "optimizer"):
        yield Proposal(code=RULE.code, slug="clip", change="gradient norm clipped to 1", make=Clip)
