"""The loss scale keeps falling and no step gets through.

What it sees
    The loss scale is below its minimum, or so many steps in a row overflowed that the scale cannot be the reason
    any more. Before the first update twice as many are granted: a scale that starts high must find its level.

Why it hurts
    A scaler skips quietly and goes on for ever: the run looks alive while nothing is learnt. A gradient that is NaN
    at any scale is not an overflow.

Smallest example
    scale 65536, 32768, 16384, ... 64   # and every step skipped

What to do
    Look for a NaN in the backward pass: the diagnosis replays the step in float32. If values really do not fit, run
    in bfloat16 or float32; the policy widens the precision where it can.

Safety
    The steps were refused anyway. From here on they count against the budgets, so the run halts instead of idling.

References
    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY301", "loss_scale_collapse", "The loss scale keeps falling and no step gets through.")


def is_collapse(reading: Reading, history: History, policy: Policy) -> bool:
    """Whether this overflow is one too many."""
    scale = reading.loss_scale
    if scale is None or math.isfinite(reading.grad_norm):
        return False
    patience = policy.overflow_patience * (1 if history.applied else 2)
    return scale < policy.min_loss_scale or history.overflow_streak + 1 > patience


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; a few comparisons."""
    if not is_collapse(reading, history, policy):
        return None
    streak = history.overflow_streak + 1
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"the loss scale fell to {reading.loss_scale:g} (highest {history.highest_scale:g}) and {streak} steps "
        "in a row overflow",
        loss_scale=reading.loss_scale,
        highest_scale=history.highest_scale,
        overflow_streak=streak,
    )


def _after(num_overflows: int) -> tuple[Reading, History]:
    history = History()
    history.admit(Reading(step=0, loss=1.0, grad_norm=1.0, loss_scale=65536.0), applied=True)
    for step in range(1, num_overflows):
        overflow = Reading(step=step, loss=1.0, grad_norm=math.inf, loss_scale=65536.0 / 2**step, refused=True)
        history.admit(overflow, applied=False)
    scale = 65536.0 / 2**num_overflows
    return Reading(step=num_overflows, loss=1.0, grad_norm=math.inf, loss_scale=scale, refused=True), history


def SPECIMEN() -> tuple[Reading, History]:
    return _after(11)


def NEAR_MISS() -> tuple[Reading, History]:
    """Ten overflows in a row are steep, and still the scale finding its level."""
    return _after(10)
