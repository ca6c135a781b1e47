"""Multiply the loss before backward and divide the gradients after it.

What it sees
    Gradients that are zero in float16 and not in float32.

Why it hurts
    A gradient of 1e-9 is zero in float16; 65536 times that is not.

Smallest example
    scaler = torch.amp.GradScaler("cuda")
    # instead of
    loss.backward()  # float16 gradients without a scale

What to do
    Use a dynamic scaler; unscale before clipping.

Safety
    Exact up to rounding, as long as nothing overflows.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.loss_scale import LossScaleChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX104", "loss_scale", "Multiply the loss before backward and divide the gradients after it.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.cause == "fp16_underflow" and context.evidence.kind == "zero_gradient":
        yield Proposal(
            code=RULE.code,
            slug="loss_scale",
            change="loss scale 65536",
            make=lambda: LossScaleChange(65536.0),
            safety="close",
        )
