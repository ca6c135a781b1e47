"""No useful update has been made for a while.

What it sees
    So many steps in a row changed no weight: each was refused, or had a gradient of exactly zero.

Why it hurts
    The run uses its hours and learns nothing, while the log goes on. In one report this lasted 98,000 steps.

Smallest example
    labels.fill_(-100)   # every label masked: loss 0, gradient 0
    # fixed
    labels[answer_mask] = input_ids[answer_mask]   # some labels count

What to do
    If the steps were refused, see the findings that refused them. If the gradients are zero, look at the labels,
    the mask, and whether the loss depends on trainable weights.

Safety
    A warning. One batch with a gradient of zero is legitimate, and so is a short streak.

References
    https://github.com/deepspeedai/DeepSpeed/issues/8415
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY302", "stalled_run", "No useful update has been made for a while.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; two comparisons. Speaks once when the streak is reached, and again at each doubling."""
    refused, zero = history.steps_without_update, history.steps_with_zero_gradient
    if refused < policy.stall_steps and zero < policy.stall_steps:
        return None
    streak, why = (refused, "each was refused") if refused >= zero else (zero, "every gradient was exactly zero")
    if not _is_milestone(streak, policy.stall_steps):
        return None
    return finding(
        RULE,
        reading,
        Severity.WARNING,
        f"no useful update for {streak} steps: {why}",
        refused_in_a_row=refused,
        zero_gradients_in_a_row=zero,
    )


def _is_milestone(streak: int, first: int) -> bool:
    while streak > first and streak % 2 == 0:
        streak //= 2
    return streak == first


def _after(num_steps: int) -> tuple[Reading, History]:
    history = History()
    for step in range(num_steps):
        history.admit(Reading(step=step, loss=0.0, grad_norm=0.0), applied=True)
    return Reading(step=num_steps, loss=0.0, grad_norm=0.0), history


def SPECIMEN() -> tuple[Reading, History]:
    return _after(25)


def NEAR_MISS() -> tuple[Reading, History]:
    """A few easy batches with nothing left to teach."""
    return _after(5)
