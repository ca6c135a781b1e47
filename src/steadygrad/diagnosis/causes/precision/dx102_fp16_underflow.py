"""A value rounded to zero in float16.

What it sees
    Gradients that are exactly zero in float16 and not in float32; an eps or a square that vanished under a
    division; second moments of an optimizer that are zero beside living first moments.

Why it hurts
    Nothing turns red: parameters stop learning, or the next division meets a zero that was not there on paper.

Smallest example
    torch.tensor(1e-8, dtype=torch.float16)  # 0
    # fixed
    torch.tensor(1e-8, dtype=torch.float32)

What to do
    Scale the loss, keep gradients and optimizer state in float32, use bfloat16, choose an eps of at least 1e-4 in
    float16.

Safety
    A loss scale is exact as long as nothing overflows. Widening changes results within rounding.

References
    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX102", "fp16_underflow", "A value rounded to zero in float16.")


def match(e: Evidence) -> Match | None:
    if e.kind == "zero_gradient" and e.gradient_in_float32:
        return Match(0.95, "gradients of these parameters are zero here and not in float32")
    if e.kind in ("spike", "state_underflow") and e.moments_without_spread > 0.01:
        share = e.moments_without_spread
        return Match(0.95, f"{share:.0%} of Adam's second moments are zero beside living first moments")
    if e.kind != "non_finite" or e.stage == "commit" or e.facts.zeroed_by_mask:
        return None
    at_zero = e.facts.denominator_zero or e.facts.argument_zero
    if at_zero and e.half and e.tiny_scalar_in_half:
        return Match(0.95, "an eps below 6e-8 was added in float16 and vanished")
    if at_zero and e.half and e.float32_step_finite:
        return Match(0.93, f"{e.op} met a zero that is not there when the step runs in float32")
    return None
