"""A weight is NaN or infinite.

What it sees
    A scan of the parameters found values that are not finite. It runs when an update looks wrong and before a
    snapshot is called good.

Why it hurts
    Every later step is computed from it. Skipping batches cannot cure a weight that is already bad, and a
    checkpoint of it is poison.

Smallest example
    optimizer.step()   # fp16 weights, Adam with eps 1e-8: 0 / 0

What to do
    The policy rolls back to the last good state; without one it halts, so that the last good checkpoint is not
    rotated away. Then look at the optimizer: gradients can be finite and the update not.

Safety
    Rolling back is exact when the steps since are replayed. Halting loses nothing that could be saved.

References
    https://github.com/pytorch/pytorch/issues/147437
"""

from __future__ import annotations

import math

from ...act.policy import Policy
from ...records import Finding, Reading, Severity
from ...rules import Rule
from ..finding import finding, listed
from ..history import History

RULE = Rule("SY105", "non_finite_parameter", "A weight is NaN or infinite.")
_NAMED = 32


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; the names were found by whoever scanned the tensors."""
    names = reading.bad_parameters
    if not names:
        return None
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"weights are not finite: {listed(names)}",
        subject=names[0],
        tensors=list(names[:_NAMED]),
        num_bad_tensors=len(names),
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_parameters=("head.weight",)), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The loss is lost, but no weight is: skipping is enough."""
    return Reading(step=9, loss=math.nan, grad_norm=math.nan), History()
