"""The gradient norm is finite and far above anything seen lately.

What it sees
    The total norm is above a limit that follows the run: the median of the last 128 applied norms, in logarithms, plus
    ten robust standard deviations; at least ten times the median; at least twice the largest; and, while fewer have
    been seen, further away still. There is none for the first steps.

Why it hurts
    One such step can undo thousands: clipping bounds its length but not its direction, and the optimizer's second
    moment remembers its square for a thousand steps.

Smallest example
    norms 0.9, 1.1, 1.0, ... 400.0

What to do
    By default nothing is done: a finite value is no proof of harm, so the spike is recorded, plotted and counted, and
    the update is applied. With `Policy.refuse_spikes`, as in `ultra_conservative`, the batch is skipped; several in a
    row are then taken for a new level and applied.

Safety
    A note by default. Where spikes are refused, a refused batch leaves no trace, and the limit is far on purpose:
    noisy norms of small batches and the falling norms of warm-up stay below it.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY201", "gradient_spike", "The gradient norm is finite and far above anything seen lately.")

_ROUNDED = 1.0 - 1e-6  # the device holds limits in float32


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; judges by the limit that was in force when the step ran, so it agrees with the device."""
    limit, norm = history.limits_of(reading, policy).grad_norm, reading.grad_norm
    if not (math.isfinite(norm) and norm > limit):
        return None
    if policy.max_norm_to_apply is not None and limit >= _ROUNDED * policy.max_norm_to_apply:
        return None  # the absolute limit was the one in force: SY204 speaks of it
    usual = math.exp(history.norm.median()) if len(history.norm) else None
    against = f", usually {usual:.3g}" if usual is not None else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL if policy.refuse_spikes else Severity.NOTE,
        f"the gradient norm is {norm:.4g}, above the limit of {limit:.4g}{against}",
        subject=_largest(reading),
        grad_norm=norm,
        limit=limit,
        usual=usual,
    )


def _largest(reading: Reading) -> str:
    if not reading.norms or len(reading.names) != len(reading.norms):
        return ""
    return reading.names[max(range(len(reading.norms)), key=reading.norms.__getitem__)]


def _steady_history() -> History:
    history = History()
    for step in range(64):
        history.admit(Reading(step=step, loss=2.0, grad_norm=1.0 + 0.1 * (step % 5)), applied=True)
    return history


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=64, loss=2.0, grad_norm=400.0), _steady_history()


def NEAR_MISS() -> tuple[Reading, History]:
    """Eight times the usual norm: a hard batch, not a spike."""
    return Reading(step=64, loss=2.0, grad_norm=8.0), _steady_history()
