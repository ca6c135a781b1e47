"""The loss is finite and absurdly high.

What it sees
    The loss is above the limit it was compared with: above thirty robust standard deviations over the median of the
    last 128, above eleven times that median, above anything seen lately by a wide margin, and above where the run
    began.

Why it hurts
    Such a batch is usually broken: wrong labels, a wrong scale, a corrupted file. Its gradient points away from
    everything learnt.

Smallest example
    losses 2.1, 2.0, 2.2, ... 900.0

What to do
    By default nothing is done: the spike is recorded, plotted and counted, and the update is applied. With
    `Policy.refuse_spikes` the batch is skipped. Look at it: its key is in the journal.

Safety
    The limit is further away than the one for gradients, since a hard batch has a high loss and does no harm.
    Several in a row are taken for a new level.

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

RULE = Rule("SY202", "loss_spike", "The loss is finite and absurdly high.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; judges by the limit that was in force when the step ran, so it agrees with the device."""
    limit = history.limits_of(reading, policy).loss
    if not (math.isfinite(reading.loss) and reading.loss > limit):
        return None
    usual = history.loss.median() if len(history.loss) else None
    against = f", usually {usual:.4g}" if usual is not None else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL if policy.refuse_spikes else Severity.NOTE,
        f"the loss is {reading.loss:.4g}, above the limit of {limit:.4g}{against}",
        subject="loss",
        loss=reading.loss,
        limit=limit,
        usual=usual,
    )


def _steady_history() -> History:
    history = History()
    for step in range(64):
        history.admit(Reading(step=step, loss=2.0 + 0.1 * (step % 5), grad_norm=1.0), applied=True)
    return history


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=64, loss=900.0, grad_norm=1.0), _steady_history()


def NEAR_MISS() -> tuple[Reading, History]:
    """Five times the usual loss: a hard batch."""
    return Reading(step=64, loss=10.0, grad_norm=1.0), _steady_history()
