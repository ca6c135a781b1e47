"""The loss scale was too large for this batch.

What it sees
    Under a loss scale, the loss is finite and the gradients are not, and this has not happened too often in a row.

Why it hurts
    It does not: a dynamic loss scale finds its level by overflowing now and then. The step is refused, the scale
    halved, the next one is applied.

Smallest example
    scaler = torch.amp.GradScaler(init_scale=65536.0)   # the first steps overflow

What to do
    Nothing. If it does not end, SY301 says so.

Safety
    A note for the record. The skip counts against no budget and not against the success rate.

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
from .loss_scale_collapse import is_collapse

RULE = Rule("SY304", "loss_scale_overflow", "The loss scale was too large for this batch.")


def is_overflow(reading: Reading, history: History, policy: Policy) -> bool:
    """Whether the step was lost to the loss scale and to nothing else."""
    if reading.loss_scale is None or math.isfinite(reading.grad_norm) or not math.isfinite(reading.loss):
        return False
    if reading.scale_to_blame is False:
        return False
    return not is_collapse(reading, history, policy)


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; a few comparisons."""
    if not is_overflow(reading, history, policy):
        return None
    return finding(
        RULE,
        reading,
        Severity.NOTE,
        f"gradients overflowed at a loss scale of {reading.loss_scale:g}",
        loss_scale=reading.loss_scale,
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=1, loss=2.0, grad_norm=math.inf, loss_scale=65536.0, refused=True), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The loss itself is NaN, which no scale explains."""
    return Reading(step=1, loss=math.nan, grad_norm=math.nan, loss_scale=65536.0, refused=True), History()
