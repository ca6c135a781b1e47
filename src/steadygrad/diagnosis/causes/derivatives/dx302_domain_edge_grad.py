"""A function was differentiated at the edge of its domain.

What it sees
    A finite or legal forward of acos, asin, acosh, atanh, logsumexp and the like, and a backward that is not
    finite.

Why it hurts
    The function ends there with a vertical tangent, or has no value to lean on (logsumexp of nothing).

Smallest example
    x = torch.ones(1, requires_grad=True); torch.acos(x).backward(); x.grad  # -inf
    # fixed
    torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6)).backward()

What to do
    Clamp strictly inside the domain; clamping to the edge keeps the infinite slope. Use atan2 for angles.

Safety
    Close: exact away from the edge.

References
    https://github.com/geoopt/geoopt/pull/79
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match
from .dx303_where_grad_trap import LEGAL_INFINITIES

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
        "special_entr",
        "special_xlog1py",
        "special_erfinv",
        "special_ndtri",
        "special_log_ndtr",
        "lgamma",
        "digamma",
        "polygamma",
        "linalg_svd",
        "linalg_eigh",
        "linalg_eig",
        "linalg_qr",
        "linalg_cholesky_ex",
        "linalg_det",
        "linalg_slogdet",
    }
)
# Functions that are infinite, or nothing at all, at the edge of their domain and beyond it.
UNIT_EDGES = frozenset({"special_ndtri", "special_entr", "special_erfinv", "special_log_ndtr"})


def match(e: Evidence) -> Match | None:
    if e.op is None or e.kind != "non_finite":
        return None
    if e.op in EDGES and e.backward:
        # Outside of the domain, not at its edge: forward was NaN there too, and someone threw it away.
        hidden = e.discarded_forward or (e.facts.incoming_zero and e.facts.zeroed_by_mask)
        outside = hidden and e.op not in LEGAL_INFINITIES
        return Match(0.9 if outside else 0.96, f"the derivative of {e.op} is undefined at the edge of its domain")
    if e.op in UNIT_EDGES and not e.backward and not any(d.num_nan or d.num_inf for d in e.inputs):
        return Match(0.7, f"{e.op} of an argument at or outside the edge of its domain")
    at_edge = e.facts.argument_at_edge and e.op not in ("log1p", "logit", "special_logit", "xlogy")
    if e.op in EDGES and at_edge:
        return Match(0.6, f"{e.op} of an argument at or outside the edge of its domain")
    # Whatever the function: legal on the way forward, and no precision makes its slope finite.
    legal = e.backward and not e.discarded_forward and not any(d.num_nan or d.num_inf for d in e.inputs)
    if legal and e.facts.float64_finite is False and not e.facts.denominator_zero and e.stage == "backward":
        return Match(0.55, f"{e.op} has no finite derivative there, though its value is finite")
    return None
