"""Too few updates are applied.

What it sees
    Of the last 200 steps, leaving out those the loss scale refused, fewer than 90 % (a note) or 85 % (a warning)
    were applied. Judged once there are 50.

Why it hurts
    A tenth of the data lost is a bias that was not chosen, and the sign of a cause that will not go away by itself.

Smallest example
    applied, skipped, applied, applied, skipped, ...

What to do
    Read the findings of the skipped steps: one cause, or one source of data, is usually behind most of them.

Safety
    It changes nothing; the budget of skips per window is what halts.

References
    https://en.wikipedia.org/wiki/Selection_bias
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY303", "low_success_rate", "Too few updates are applied.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; one pass over at most a few hundred booleans, and only right after a skip, when the rate falls."""
    if history.steps_without_update != 1:
        return None
    applied, counted = history.success(policy.success_window)
    if counted < policy.success_min_steps or applied >= policy.success_notice * counted:
        return None
    severity = Severity.WARNING if applied < policy.success_alarm * counted else Severity.NOTE
    rate = applied / counted
    return finding(
        RULE,
        reading,
        severity,
        f"only {rate:.1%} of the last {counted} steps were applied",
        success_rate=rate,
        num_applied=applied,
        num_steps=counted,
    )


def _every(period: int) -> tuple[Reading, History]:
    history = History()
    for step in range(100):
        bad = step % period == period - 1
        history.admit(Reading(step=step, loss=float("nan") if bad else 1.0, grad_norm=1.0), applied=not bad)
    return Reading(step=100, loss=1.0, grad_norm=1.0), history


def SPECIMEN() -> tuple[Reading, History]:
    return _every(5)


def NEAR_MISS() -> tuple[Reading, History]:
    """One in twenty is skipped: 95 % were applied."""
    return _every(20)
