"""Compute in bfloat16 instead of float16.

What it sees
    A run with float16 weights or float16 autocast whose step failed.

Why it hurts
    bfloat16 has the range of float32 with 8 significant bits: nothing overflows, and small steps may round away.

Smallest example
    with torch.autocast("cuda", dtype=torch.bfloat16): ...
    # instead of
    with torch.autocast("cuda", dtype=torch.float16): ...

What to do
    Switch the autocast dtype, or load the weights in bfloat16; drop the loss scaler.

Safety
    Behavioural: results move by the rounding of 8 bits.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ....records.rules import Rule
from ...interventions.precision_changes import Precision
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX101", "bf16", "Compute in bfloat16 instead of float16.")
# In these, or where nothing fits, the width of the arithmetic may be what is wrong.
PRECISION_CAUSES = frozenset(
    {
        "",
        "fp16_overflow",
        "fp16_underflow",
        "scaler_misuse",
        "optimizer_eps_underflow",
        "lost_update",
        "cancellation",
        "exp_overflow",
        "fp8_overflow",
    }
)


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.fp16 and context.cause in PRECISION_CAUSES:
        yield Proposal(
            code=RULE.code,
            slug="bf16",
            change="bfloat16 in place of float16",
            make=lambda: Precision(torch.bfloat16),
        )
