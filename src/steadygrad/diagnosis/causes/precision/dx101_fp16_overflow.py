"""A value left the float16 range of 65504.

What it sees
    An op with finite inputs whose float16 output is inf or NaN, while the same op on the same numbers is finite in
    float32.

Why it hurts
    inf meets another inf or a zero within a few ops and becomes NaN. In forward the loss is lost; in backward the
    scaled gradient is.

Smallest example
    (torch.full((1, 256), 400.0, dtype=torch.float16) @ torch.ones(256, 1, dtype=torch.float16))  # 102400 > 65504
    # fixed
    (torch.full((1, 256), 400.0) @ torch.ones(256, 1))  # in float32

What to do
    Run the op or its module in float32, use bfloat16, or bound what goes in. Clipping gradients comes too late.

Safety
    Widening one op changes results within rounding. bfloat16 keeps the range and gives up three bits.

References
    https://github.com/huggingface/transformers/issues/5651
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import FP16_MAX, Evidence
from ..match import Match

RULE = Rule("DX101", "fp16_overflow", "A value left the float16 range of 65504.")


def match(e: Evidence) -> Match | None:
    if e.op is None or not e.half or e.kind != "non_finite" or any(d.num_nan or d.num_inf for d in e.inputs):
        return None
    if e.facts.denominator_zero or (e.facts.argument_zero and e.op in ("log", "reciprocal", "rsqrt")):
        return None
    if e.facts.float32_finite:
        size = e.facts.float64_absmax
        sure = 0.94 if size > FP16_MAX else 0.85
        return Match(sure, f"{e.op} gives {size:.6g} in float64; float16 ends at 65504")
    if e.facts.float32_finite is None and e.float32_step_finite:
        return Match(0.7, f"{e.op} in float16 made it; the same step in float32 is finite")
    return None
