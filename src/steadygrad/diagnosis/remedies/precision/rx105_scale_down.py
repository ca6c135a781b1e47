"""Use a smaller loss scale.

What it sees
    A backward pass that overflows with the loss scale and not without it.

Why it hurts
    The scale lifts small gradients and pushes large ones over the edge.

Smallest example
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    # instead of
    scaler = torch.amp.GradScaler("cuda", init_scale=65536.0)

What to do
    Let a dynamic scaler choose, or divide the fixed scale until nothing overflows.

Safety
    Exact up to rounding; the smallest gradients may vanish.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.loss_scale import LossScaleChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX105", "scale_down", "Use a smaller loss scale.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    scale = context.evidence.loss_scale
    if context.evidence.backward and scale and scale > 1 and not context.silent:
        yield Proposal(
            code=RULE.code,
            slug="scale_down",
            change=f"loss scale 1 in place of {scale:.6g}",
            make=lambda: LossScaleChange(1.0 / scale),
            safety="close",
        )
    if context.evidence.backward and not scale and context.fp16 and not context.silent:
        yield Proposal(
            code=RULE.code,
            slug="scale_down",
            change="loss divided by 1024 before backward, gradients multiplied after it",
            make=lambda: LossScaleChange(1.0 / 1024.0),
            safety="close",
        )
