"""The data set writes into the samples that it keeps, and they drift from epoch to epoch.

What it sees
    The samples of a batch are views of an array that the data set keeps. The array was written while the batch was
    made, in two epochs one after the other, and its mean or deviation changed by more than a tenth in both.

Why it hurts
    A transform in place is applied again to what it gave the last time: inputs that are normalised in each epoch shrink
    to a point or move away, and differ from those of the validation set.

Smallest example
    def __getitem__(self, i): x = self.x[i]; x -= self.mean; x /= self.std; return x
    # fixed
    def __getitem__(self, i): return (self.x[i] - self.mean) / self.std

What to do
    Compute a new tensor, or work on a copy: `x = self.x[i].clone()`.

Safety
    It changes nothing. It is seen under `steady run` for loaders without workers: workers write into copies. A cache
    that is filled once, augmentations that leave mean and deviation as they are, and what the training writes into a
    data set are not reported.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY463",
    "samples_rewritten",
    "The data set writes into the samples that it keeps, and they drift from epoch to epoch.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.rewritten:
        return None
    fix = "let the transform make a new tensor, or give it a copy: self.x[i].clone()"
    return loop_finding(RULE, record, record.rewritten, fix=fix, phase="data")


def _record(rewritten: str) -> LoopRecord:
    record = LoopRecord(rewritten=rewritten)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("the data set writes into the samples that it keeps")


def NEAR_MISS() -> LoopRecord:
    return _record("")
