"""All rows of a batch are one sample: the data set gives the same memory away for each of them.

What it sees
    In four batches, all rows of an input are the same, bit for bit, though different samples were asked for and their
    labels differ. A copy of the data set gives different samples one by one, and the first of them changes when the
    second is asked for.

Why it hurts
    A batch has one input with the labels of all of its samples, so the model learns next to nothing of each.

Smallest example
    def __getitem__(self, i): self.buffer[:] = self.read(i); return self.buffer, self.labels[i]
    # fixed
    def __getitem__(self, i): return self.read(i), self.labels[i]

What to do
    Return a tensor of its own for each sample: `self.buffer.clone()`.

Safety
    It changes nothing, and the program's own data set is not asked for anything. It is seen under `steady run`, where
    torch stacks single samples and the data set is small enough to be copied (16 MiB). Batches in which a program
    repeats one prompt, and data sets that hold equal samples, are not reported.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY465",
    "aliased_samples",
    "All rows of a batch are one sample: the data set gives the same memory away for each of them.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.aliased:
        return None
    fix = "return a tensor of its own for each sample: clone what is returned"
    return loop_finding(RULE, record, record.aliased, fix=fix, phase="data")


def _record(aliased: str) -> LoopRecord:
    record = LoopRecord(aliased=aliased)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("all rows of each of 4 batches are the same")


def NEAR_MISS() -> LoopRecord:
    return _record("")
