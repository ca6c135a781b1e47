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

from ...rules import Rule
from ..surgery.scale import Scale
from ..ward import Proposal, Ward

RULE = Rule("RX104", "loss_scale", "Multiply the loss before backward and divide the gradients after it.")


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.cause == "fp16_underflow" and ward.evidence.kind == "zero_gradient":
        yield Proposal(
            code=RULE.code,
            slug="loss_scale",
            change="loss scale 65536",
            make=lambda: Scale(65536.0),
            safety="close",
        )
