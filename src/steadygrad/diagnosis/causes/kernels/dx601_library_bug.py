"""A fused kernel returned a bad value where its plain decomposition is finite.

What it sees
    A fused attention, optimizer or scaler kernel with finite inputs and a bad output, which is finite when the
    plain implementation computes it.

Why it hurts
    Every line of the program is right and the result is wrong.

Smallest example
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # NaN with one backend, finite with another
    # fixed
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

What to do
    Use the plain backend for this op, report the bug, update the library.

Safety
    Close: the decomposition computes the same function.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX601", "library_bug", "A fused kernel returned a bad value where its plain decomposition is finite.")


def match(e: Evidence) -> Match | None:
    if e.op is None or e.plain_backend_finite is not True or not e.inputs_finite:
        return None
    return Match(0.95, f"{e.op} is finite when another kernel computes it")
