"""Sum inside half-precision products in float32.

What it sees
    A failing step with half-precision products while sums in half precision are allowed inside them.

Why it hurts
    A dot product whose result is small can have partial sums beyond 65504.

Smallest example
    torch.backends.cuda.matmul.allow_fp16_accumulation = False
    # instead of
    torch.backends.cuda.matmul.allow_fp16_accumulation = True

What to do
    Leave `allow_fp16_accumulation` off; switch `allow_fp16_reduced_precision_reduction` off where split sums overflow.

Safety
    Close: less rounding, somewhat slower.

References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#reduced-precision-reduction-in-fp16-gemms
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX173", "fp32_accumulation", "Sum inside half-precision products in float32.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "fp32_accumulation")
