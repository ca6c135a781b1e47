"""The gradient norm overflowed although every gradient is finite.

What it sees
    The total norm is not finite, but each tensor's is (the total is then computed again in double precision), or a
    second look found every gradient finite.

Why it hurts
    A norm is a sum of squares: in float32 it overflows at gradients of 1e19, in float16 at 256. Dividing by an
    infinite norm makes every clipped gradient zero, and the step would teach nothing while momentum goes on. Without
    clipping the norm is divided by nowhere: then one process computes it again in double precision, applies the update
    and undoes it if it made a weight or a moment bad.

Smallest example
    torch.full((4,), 1e20).norm()   # inf
    # fixed
    torch.full((4,), 1e20, dtype=torch.float64).norm()   # 2e20

What to do
    The batch is skipped. If it keeps coming, the gradients really are far too large: lower the learning rate, raise
    the warm-up, look for an exploding layer. In float16, compute norms in float32.

Safety
    Refusing is exact. The finding says how large the norm really was, so it is not mistaken for a NaN.

References
    https://docs.pytorch.org/docs/stable/generated/torch.linalg.vector_norm.html
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY104", "norm_overflow", "The gradient norm overflowed although every gradient is finite.")


def is_norm_overflow(reading: Reading) -> bool:
    """Whether the total is not finite while nothing in it is."""
    if math.isfinite(reading.grad_norm):
        return False
    if reading.gradients_finite is not None:
        return reading.gradients_finite
    return bool(reading.norms) and all(map(math.isfinite, reading.norms))


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; walks the per-tensor norms only if the total is not finite."""
    if not is_norm_overflow(reading):
        return None
    # hypot scales by the largest value first, so it overflows only where the true norm does.
    true_norm = math.hypot(*reading.norms) if reading.norms else math.inf
    largest = max(range(len(reading.norms)), key=reading.norms.__getitem__, default=None)
    subject = reading.names[largest] if largest is not None and largest < len(reading.names) else ""
    size = (
        f"it is {true_norm:.3g} in double precision" if math.isfinite(true_norm) else "a tensor's own norm overflowed"
    )
    where = f", most of it in {subject}" if subject else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"the gradient norm overflowed, the gradients are finite: {size}{where}",
        subject=subject,
        grad_norm=reading.grad_norm,
        true_norm=true_norm,
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=5, loss=1.0, grad_norm=math.inf, norms=(2e38, 3e38), names=("embed", "head")), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """A tensor's norm is infinite and its values were not looked at: that is SY103."""
    return Reading(step=5, loss=1.0, grad_norm=math.inf, norms=(1.0, math.inf), names=("embed", "head")), History()
