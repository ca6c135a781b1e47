"""Gradients are never cleared: each update uses the sum of all gradients so far.

What it sees
    The gradients of the last update were still there, untouched, when the next backward pass began, in two updates
    in a row; part of the gradient that was applied is from earlier batches.

Why it hurts
    The update follows a growing sum of old gradients. The loss falls at first and then swings, or diverges, and a
    smaller learning rate does not help.

Smallest example
    for batch in loader:
        loss_fn(model, batch).backward(); optimizer.step()
    # fixed
    for batch in loader:
        optimizer.zero_grad(); loss_fn(model, batch).backward(); optimizer.step()

What to do
    Call `optimizer.zero_grad()` once for each update, before its first backward pass.

Safety
    It changes nothing. It is reported once in a run. Accumulation within one update, gradients that the loop scales
    or averages by itself, and optimizers that take a closure are not reported.

References
    https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY420", "missing_zero_grad", "Gradients are never cleared: each update uses the sum of all gradients so far."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if not recent or not all(update.kept and not update.closure for update in recent):
        return None
    share = recent[-1].old_share
    return loop_finding(
        RULE,
        record,
        f"gradients were not cleared since the last update: {share:.0%} of the gradient is from earlier batches",
        fix="call optimizer.zero_grad() once for each update, before its first backward pass",
        old_share=share,
    )


def _record(*kept: bool) -> LoopRecord:
    record = LoopRecord()
    for each in kept:
        record.add(UpdateSeen(kept=each, old_share=0.4))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(False, True, True)


def NEAR_MISS() -> LoopRecord:
    """Kept once: the loop may have left one update out."""
    return _record(True, False, True)
