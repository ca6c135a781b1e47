"""Scale by the tensor's own maximum before the cast to an 8-bit float.

What it sees
    A cast to float8 that overflows: without a scale, or with one from earlier steps or another tensor.

Why it hurts
    float8_e4m3fn ends at 448. A scale from before fits the tensors from before, not the one that grew.

Smallest example
    scale = 448.0 / x.abs().amax().clamp_min(1e-12); (x * scale).to(torch.float8_e4m3fn)
    # instead of
    scale = 448.0 / amax_history.max(); (x * scale).to(torch.float8_e4m3fn)

What to do
    Take the scale of each tensor, or of each row or block, from the values that are cast. It costs one more pass.

Safety
    Close: an outlier makes the rounding of all others coarser; a scale for each row or block limits that.

References
    https://docs.pytorch.org/ao/stable/
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.eight_bit_casts import own_scale
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX107", "own_scale", "Scale by the tensor's own maximum before the cast to an 8-bit float.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.cause == "fp8_overflow" and context.can_operate() and not context.silent:
        yield Proposal(
            code=RULE.code,
            slug="own_scale",
            change="the scale taken from the largest value of the tensor that is cast",
            make=context.operation(own_scale),
            safety="close",
        )
