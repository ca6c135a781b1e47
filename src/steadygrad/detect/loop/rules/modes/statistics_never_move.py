"""Batch normalisation is evaluated with running statistics that training never moves.

What it sees
    A pass in evaluation mode through batch normalisation whose momentum is 0, which has been called in training mode,
    and whose running mean and variance are still 0 and 1.

Why it hurts
    In training each batch is normalised by itself, in evaluation not at all: the network is another one there.
    In torch the momentum is the weight of the new batch, so 0 means that no batch counts.

Smallest example
    nn.BatchNorm1d(64, momentum=0.0)
    # fixed
    nn.BatchNorm1d(64)   # momentum=0.1; momentum=None averages over all batches

What to do
    Give a momentum above 0. Where statistics of the batch are wanted in evaluation as well, say
    `track_running_stats=False`.

Safety
    It changes nothing and reads a few numbers, for a momentum of 0 only. Pretrained statistics that are held by a
    momentum of 0, and a network that is never evaluated, are not reported.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY461",
    "statistics_never_move",
    "Batch normalisation is evaluated with running statistics that training never moves.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    names = record.last.unmoved_statistics
    if not names:
        return None
    return loop_finding(
        RULE,
        record,
        f"{len(names)} modules of batch normalisation have a momentum of 0: their running statistics are still 0 and 1 "
        f"in evaluation (the first is {names[0] or 'the model itself'})",
        fix="give batch normalisation a momentum above 0",
        subject=names[0],
        names=list(names[:16]),
    )


def _record(*names: str) -> LoopRecord:
    record = LoopRecord()
    record.add(UpdateSeen(unmoved_statistics=names))
    return record


def SPECIMEN() -> LoopRecord:
    return _record("norm")


def NEAR_MISS() -> LoopRecord:
    return _record()
