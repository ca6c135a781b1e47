"""A weight is NaN or infinite.

What it sees
    A scan of the parameters found values that are not finite. It runs when an update looks wrong and before a
    snapshot is called good.

Why it hurts
    Every later step is computed from it. Skipping batches cannot repair a weight that is already bad, and a
    checkpoint of it is poison.

Smallest example
    optimizer.step()   # fp16 weights, Adam with eps 1e-8: 0 / 0
    # fixed
    torch.optim.AdamW(model.float().parameters())   # float32 weights

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

from ....policy import Policy
from ....records import Finding, Reading
from ....records.rules import Rule
from ...history import History
from ...make_finding import not_finite

RULE = Rule("SY105", "non_finite_parameter", "A weight is NaN or infinite.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; the names were found by whoever scanned the tensors."""
    why = f"{' and '.join(reading.bad_options)}, so the updated " if reading.bad_options else ""
    return not_finite(RULE, reading, f"{why}weights are", reading.bad_parameters)


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_parameters=("head.weight",)), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The loss is lost, but no weight is: skipping is enough."""
    return Reading(step=9, loss=math.nan, grad_norm=math.nan), History()
