"""The exponential of a large argument overflowed.

What it sees
    exp (or a relative of it) with finite input and infinite output in its own dtype and in float32.

Why it hurts
    float32 ends at exp(88.7). One outlier is enough; the infinity is NaN a product later.

Smallest example
    torch.exp(torch.tensor(100.0))  # inf
    # fixed
    torch.exp(torch.tensor(100.0).clamp(max=80.0))

What to do
    Bound the argument, or rewrite in log space (logsumexp, expm1 of a clamped difference).

Safety
    A bound is exact below it.

References
    https://github.com/THUDM/slime/pull/2198
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import FLOAT32_MAX, Evidence
from ..match import Match

RULE = Rule("DX204", "exp_overflow", "The exponential of a large argument overflowed.")

EXPONENTIALS = frozenset(
    {
        "exp",
        "expm1",
        "exp2",
        "sinh",
        "cosh",
        "special_exp2",
        "logaddexp",
        "ldexp",
        "i0",
        "special_i1",
        "matrix_exp",
        "linalg_matrix_exp",
    }
)
TAME = 1e4
"""A function that overflows at an argument no larger than this grows like an exponential."""
STEEP = 5.0
"""One that is infinite at an argument no larger than this does not grow: it has a pole or an edge there."""
POWERS = frozenset({"pow", "prod", "cumprod"})


def match(e: Evidence) -> Match | None:
    if e.kernel_fails_on == "size" and not e.half:
        return Match(0.6, f"{e.op} is finite once what it is given is a thousand times smaller")
    if e.op in EXPONENTIALS and e.backward and e.kind == "non_finite" and e.discarded_forward:
        hidden = f"{e.op} overflowed, and a function behind it has hidden that from the loss"
        return Match(0.96 if e.capped else 0.9, hidden) if e.capped or e.saturated else None
    if e.op is None or e.backward or e.kind != "non_finite" or any(d.num_nan or d.num_inf for d in e.inputs):
        return None
    largest = max((d.absmax for d in e.inputs), default=0.0)
    if e.op not in EXPONENTIALS and not e.facts.scalar_base:
        if e.is_nan or e.half or largest <= STEEP:
            return None
        grown = e.op.startswith("special_") and len(e.inputs) == 1 and largest <= TAME
        beyond = e.facts.float64_absmax > FLOAT32_MAX or e.facts.float64_finite is False
        raised = e.op in POWERS and beyond and not e.facts.argument_zero
        sure = 0.6 if largest <= TAME else 0.55
        return Match(sure, f"{e.op} of an argument as large as {largest:.4g}") if grown or raised else None
    if e.half and e.facts.float32_finite:
        return Match(0.6, f"{e.op} of {largest:.4g} in float16")
    return Match(0.92, f"{e.op} of an argument as large as {largest:.4g}")
