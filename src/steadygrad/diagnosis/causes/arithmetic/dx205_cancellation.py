"""Two nearly equal numbers were subtracted and only rounding was left.

What it sees
    A root, logarithm or arc function of a slightly negative number that comes from a difference of much larger
    ones.

Why it hurts
    E[x^2]-E[x]^2 has the rounding error of E[x^2]; where the variance is smaller than that, the result is noise of
    either sign.

Smallest example
    x = torch.full((16,), 3000.0) + 0.01 * torch.randn(16); x.pow(2).mean() - x.mean().pow(2)
    # fixed
    (x - x.mean()).pow(2).mean()

What to do
    Subtract the mean first (two passes), or bound the difference at zero before the root.

Safety
    Two passes are exact; a bound hides the lost digits and keeps the step finite.

References
    https://github.com/Project-MONAI/MONAI/issues/1868
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX205", "cancellation", "Two nearly equal numbers were subtracted and only rounding was left.")

ROOTS = frozenset({"sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "acosh", "acos", "asin"})


def match(e: Evidence) -> Match | None:
    if e.op is None or e.backward or e.kind != "non_finite":
        return None
    if e.op in ROOTS and e.facts.argument_negative and e.cancelled:
        return Match(0.95, f"{e.op} of a negative number left over from a difference of far larger ones")
    if e.op in ("linalg_cholesky_ex", "cholesky") and not any(d.num_nan or d.num_inf for d in e.inputs):
        return Match(
            0.6, "the root of a matrix that is not positive definite: it is singular, or rounding has left it so"
        )
    if e.op in ROOTS - {"log", "log2", "log10"} and e.facts.argument_negative and e.is_nan:
        return Match(0.55, f"{e.op} of a negative number")
    return None
