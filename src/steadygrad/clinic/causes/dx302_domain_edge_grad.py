"""A function was differentiated at the edge of its domain.

What it sees
    A finite or legal forward of acos, asin, acosh, atanh, logsumexp and the like, and a backward that is not
    finite.

Why it hurts
    The function ends there with a vertical tangent, or has no value to lean on (logsumexp of nothing).

Smallest example
    x = torch.ones(1, requires_grad=True); torch.acos(x).backward(); x.grad  # -inf

What to do
    Clamp strictly inside the domain; clamping to the edge keeps the infinite slope. Use atan2 for angles.

Safety
    Close: exact away from the edge.

References
    https://github.com/geoopt/geoopt/pull/79
"""

from __future__ import annotations

from ...rules import Rule
from ..evidence import Evidence
from .match import Match

RULE = Rule("DX302", "domain_edge_grad", "A function was differentiated at the edge of its domain.")

EDGES = frozenset(
    {
        "acos",
        "asin",
        "acosh",
        "atanh",
        "logsumexp",
        "erfinv",
        "logaddexp",
        "logaddexp2",
        "logcumsumexp",
        "angle",
        "special_logit",
        "logit",
        "atan2",
        "log1p",
        "xlogy",
        "linalg_svd",
        "linalg_eigh",
        "linalg_eig",
        "linalg_qr",
        "linalg_cholesky_ex",
        "linalg_det",
        "linalg_slogdet",
    }
)


def match(e: Evidence) -> Match | None:
    if e.op not in EDGES or e.kind != "non_finite":
        return None
    if e.backward:
        return Match(0.96, f"the derivative of {e.op} is undefined at the edge of its domain")
    if e.facts.argument_at_edge and e.op not in ("log1p", "logit", "special_logit", "xlogy"):
        return Match(0.6, f"{e.op} of an argument at or outside the edge of its domain")
    return None
