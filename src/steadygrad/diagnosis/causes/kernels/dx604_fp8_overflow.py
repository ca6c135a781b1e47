"""A value left the range of an 8-bit float.

What it sees
    A cast or a product in float8 that is not finite, or saturates, where float32 is finite.

Why it hurts
    float8_e4m3fn ends at 448 and has no infinity: overflow is NaN (torch before 2.12, and compiled code that does not
    saturate); float8_e4m3fnuz ends at 240 and gives NaN, float8_e5m2 at 57344 and gives infinity.

Smallest example
    torch.tensor(1e5).to(torch.float8_e5m2)  # inf
    # fixed
    scale = x.abs().max() / 57344.0; (x / scale).to(torch.float8_e5m2)

What to do
    Scale before the cast, per tensor or per block, or keep this layer in bfloat16.

Safety
    Close: scaling is exact up to rounding.

References
    https://arxiv.org/abs/2209.05433
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX604", "fp8_overflow", "A value left the range of an 8-bit float.")


def match(e: Evidence) -> Match | None:
    if e.op is None or not any(d.dtype.startswith("float8") for d in (*e.inputs, *e.outputs)):
        return None
    return Match(0.95, f"{e.op} left the range of {e.dtype}")
