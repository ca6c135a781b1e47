"""A gradient is NaN or infinite.

What it sees
    At least one tensor's gradient norm, or the total, is not finite, and no second look has shown the gradients
    themselves to be finite. The bad tensors are named.

Why it hurts
    Clipping does not help: with one NaN gradient, clipping by global norm makes every gradient NaN; with one
    infinite gradient it zeroes the healthy ones. Zeroing the bad ones and stepping lets momentum and weight decay
    move the weights on no evidence.

Smallest example
    torch.zeros(3, requires_grad=True).norm(p=0.5).backward()
    # fixed
    (torch.zeros(3, requires_grad=True) + 1e-6).norm(p=0.5).backward()

What to do
    The batch is skipped without a trace. The diagnosis names the forward op whose derivative made it.

Safety
    Refusing the update is exact. Under a loss scale an overflow is normal life and is SY304 instead.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding, listed
from ..loss_scale.loss_scale_overflow import is_overflow
from .norm_overflow import is_norm_overflow

RULE = Rule("SY103", "non_finite_gradient", "A gradient is NaN or infinite.")
_NAMED = 32


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; walks the per-tensor norms only if the total is not finite."""
    if math.isfinite(reading.grad_norm) or is_norm_overflow(reading) or is_overflow(reading, history, policy):
        return None
    bad = [index for index, norm in enumerate(reading.norms) if not math.isfinite(norm)]
    names = [reading.names[index] if index < len(reading.names) else f"tensor {index}" for index in bad]
    num_nan = sum(math.isnan(reading.norms[index]) for index in bad)
    where = f" in {len(bad)} of {len(reading.norms)} tensors: {listed(names)}" if bad else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"the gradient is not finite{where}",
        subject=names[0] if names else "",
        tensors=names[:_NAMED],
        num_bad_tensors=len(bad),
        num_tensors=len(reading.norms),
        num_nan=num_nan,
        num_inf=len(bad) - num_nan,
        grad_norm=reading.grad_norm,
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=5, loss=1.0, grad_norm=math.nan, norms=(0.5, math.nan), names=("embed", "head")), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """Every tensor's norm is finite; only their total overflowed."""
    return Reading(step=5, loss=1.0, grad_norm=math.inf, norms=(2e38, 3e38), names=("embed", "head")), History()
