"""A division met an exact zero.

What it sees
    div, reciprocal or a negative power with a zero in the denominator where the result went bad.

Why it hurts
    x/0 is inf and 0/0 is NaN. The zero is usually legal data: an empty mask, a constant row, the last step of a
    schedule.

Smallest example
    (err * mask).sum(1) / mask.sum(1)  # one sample has an empty mask
    # fixed
    (err * mask).sum(1) / mask.sum(1).clamp_min(1)

What to do
    Give the denominator a floor (clamp_min), or decide the value for empty rows:
    `torch.where(count > 0, count, 1)` before dividing.

Safety
    A floor is exact for every row whose denominator was above it.

References
    https://github.com/Zhen-Dong/Magic-Me/issues/14
"""

from __future__ import annotations

from ....records.rules import Rule
from ...locate.op_facts import DIVISIONS
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX201", "zero_division", "A division met an exact zero.")
POLES = frozenset({"digamma", "polygamma", "special_polygamma", "special_zeta", "special_psi"})
SOLVERS = frozenset(
    {
        "linalg_inv_ex",
        "linalg_solve_ex",
        "linalg_solve_triangular",
        "linalg_lu_solve",
        "linalg_ldl_solve",
        "triangular_solve",
        "cholesky_solve",
        "cholesky_inverse",
    }
)
"""What divides by the pivots of a matrix."""
TAME = 5.0
"""A function that is infinite at an argument no larger than this has a pole there; it does not grow to it."""
NORMALISATIONS = frozenset(
    {
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "rms_norm",
        "fused_rms_norm",
        "weight_norm_interface",
    }
)


def match(e: Evidence) -> Match | None:
    if e.kernel_fails_on == "zeros":
        return Match(0.6, f"{e.op} is finite once the exact zeros that it is given are small numbers")
    if e.kernel_fails_on == "equals":
        return Match(0.6, f"{e.op} is finite once the numbers that it is given are not alike: they have no spread")
    if e.op is None or e.kind != "non_finite":
        return None
    if e.phase == "optimizer":
        divided = e.op in DIVISIONS and e.facts.denominator_zero and not e.half
        return Match(0.9, f"{e.op} in the optimizer by an exact zero") if divided else None
    sound = not any(d.num_nan or d.num_inf for d in e.inputs)
    largest = max((d.absmax for d in e.inputs), default=0.0)
    if e.op in POLES and not e.backward and (e.facts.argument_zero or (sound and largest <= TAME)):
        return Match(0.8, f"{e.op} at a pole, where it grows like one over its argument")
    if e.op in SOLVERS and not e.backward and not e.half and sound:
        return Match(0.8, f"{e.op} of a matrix that has no inverse: one of its pivots is zero")
    if e.backward and e.discarded_forward and e.saturated and e.op in DIVISIONS:
        return Match(0.9, f"{e.op} by an exact zero, which a function behind it has hidden from the loss")
    divides = e.op in DIVISIONS or e.op == "pow"
    if e.op in NORMALISATIONS and not e.backward and sound and not e.half:
        return Match(0.7, f"{e.op} of values without any spread, with no eps to speak of")
    if e.facts.denominator_zero and e.op in DIVISIONS:
        return Match(0.9, f"{e.op} by an exact zero")
    if divides and e.facts.argument_zero and not e.backward:
        return Match(0.85, f"{e.op} of an exact zero")
    return None
