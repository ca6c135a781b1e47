"""Gradients are cleared between backward and the update: the update carries no information.

What it sees
    Backward gave gradients, and at the next two updates there were none left, or their norm was exactly zero. Where
    several optimizers take turns, at every update of this one that backward gave gradients for, since the first, and
    at eight of them at least.

Why it hurts
    The optimizer is stepped and nothing is learnt; with momentum or weight decay the weights still drift.

Smallest example
    loss.backward(); optimizer.zero_grad(); optimizer.step()
    # fixed
    optimizer.zero_grad(); loss.backward(); optimizer.step()

What to do
    Clear the gradients before backward or after the update, not between them.

Safety
    It changes nothing. It is reported once in a run. A single update without gradients, as a batch without labels
    gives, is not reported.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY421",
    "zero_grad_before_step",
    "Gradients are cleared between backward and the update: the update carries no information.",
)
_IN_TURN = 8


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if any(update.in_turn for update in recent):  # one that waits for the others may be stepped without a gradient
        given = [update for update in record.updates if update.backwards]
        recent = given if record.count == len(record.updates) and len(given) >= _IN_TURN else []
    if not recent or not all(update.no_gradient and not update.closure for update in recent):
        return None
    last = f"the last {len(recent)} updates had none"
    return loop_finding(
        RULE,
        record,
        f"the gradients that backward gave were cleared before optimizer.step(): {last}",
        fix="clear the gradients before backward or after the update, not between them",
    )


def _record(*empty: bool) -> LoopRecord:
    record = LoopRecord()
    for each in empty:
        record.add(UpdateSeen(no_gradient=each))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(True, True)


def NEAR_MISS() -> LoopRecord:
    return _record(True, False, True)
