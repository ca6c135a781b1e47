"""The classes come one after another: each batch has one class only, and nothing shuffles them.

What it sees
    In a whole epoch of a loader that does not shuffle, nearly all losses had targets of one class, each class in one
    stretch of batches; and the next epoch begins with the same classes.

Why it hurts
    While one class is delivered the model learns to name it whatever the input is, and forgets the others. What it
    knows at the end depends on which class came last.

Smallest example
    loader = DataLoader(dataset_sorted_by_class, batch_size=32)
    # fixed
    loader = DataLoader(dataset_sorted_by_class, batch_size=32, shuffle=True)

What to do
    Shuffle the training data.

Safety
    It changes nothing. It is seen under `steady run`, on a CPU, for losses of class indices. Loaders for evaluation,
    samplers that draw by class on purpose, tasks that are learnt one after another and ordered series are not reported.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY462",
    "sorted_by_class",
    "The classes come one after another: each batch has one class only, and nothing shuffles them.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.by_class:
        return None
    return loop_finding(RULE, record, record.by_class, fix="shuffle the training data: shuffle=True", phase="data")


def _record(by_class: str) -> LoopRecord:
    record = LoopRecord(by_class=by_class)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("in 32 of 32 batches of an epoch all targets are of one class, and the 4 come one after another")


def NEAR_MISS() -> LoopRecord:
    return _record("")
