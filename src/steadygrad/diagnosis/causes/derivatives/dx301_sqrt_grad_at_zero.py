"""A root, norm or fractional power was differentiated at zero.

What it sees
    A finite forward, and an infinite factor in the backward of sqrt, norm or pow where its argument is exactly
    zero.

Why it hurts
    d sqrt(x)/dx = 1/(2 sqrt(x)). The inf meets a zero further back and is NaN.

Smallest example
    x = torch.zeros(3, requires_grad=True); torch.sqrt(x).sum().backward(); x.grad  # inf
    # fixed
    torch.sqrt(x + 1e-12).sum().backward()

What to do
    Add an eps inside the root, or clamp the argument above zero.

Safety
    Close: results move by about sqrt(eps) near zero and by nothing elsewhere.

References
    https://github.com/pytorch/pytorch/issues/4320
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX301", "sqrt_grad_at_zero", "A root, norm or fractional power was differentiated at zero.")

ROOTS = frozenset(
    {
        "sqrt",
        "pow",
        "norm",
        "linalg_vector_norm",
        "cdist",
        "cdist_forward",
        "std",
        "hypot",
        "pdist_forward",
        "renorm",
    }
)


def match(e: Evidence) -> Match | None:
    if not e.backward or e.op not in ROOTS or e.kind != "non_finite":
        return None
    zeros = e.facts.argument_zero or any(d.num_zero for d in e.inputs)
    return Match(0.9 if zeros else 0.6, f"the derivative of {e.op} at zero is infinite")
