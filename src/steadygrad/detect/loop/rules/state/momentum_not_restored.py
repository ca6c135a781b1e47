"""A new optimizer trains the same weights without the state of the one before.

What it sees
    An optimizer of the same class and options had trained these weights and had state; the one that steps now began
    with none: a state without moments was loaded into it, or it is the second time that a new one was made.

Why it hurts
    Moments and step counters begin at zero: the first updates after each resume are of full size, and momentum
    never builds up.

Smallest example
    def train_epoch(model): optimizer = torch.optim.Adam(model.parameters()); ...
    # fixed
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(9): train_epoch(model, optimizer)

What to do
    Make the optimizer once, and load its whole `state_dict()` when a run is resumed.

Safety
    It changes nothing. It is reported once in a run. A new optimizer for a new stage, with other options or for
    other weights, is not reported; one that is made again and again may be wanted, for one task after another, so it
    is a warning and no incident.

References
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY429", "momentum_not_restored", "A new optimizer trains the same weights without the state of the one before."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.state_lost:
        return None
    return loop_finding(
        RULE,
        record,
        f"the optimizer's state was not carried over: {record.state_lost}",
        fix="make the optimizer once, and load its whole state_dict() when a run is resumed",
        phase="state",
        certain=record.surely_lost,
    )


def _record(lost: str) -> LoopRecord:
    record = LoopRecord(state_lost=lost)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("a state without moments was loaded after 80 updates")


def NEAR_MISS() -> LoopRecord:
    return _record("")
