"""All rows of a batch are one sample: the data set gives the same memory away for each of them.

What it sees
    In four batches, all rows of an input are the same, bit for bit, though different samples were asked for and their
    labels differ. A copy of the data set gives different samples one by one, and the first of them changes when the
    second is asked for. Or all rows of several batches in a row are one array, to which each entry of a list of the
    program refers, such as a replay memory.

Why it hurts
    A batch has one input with the labels of all of its samples, so the model learns next to nothing of each.

Smallest example
    def __getitem__(self, i): self.buffer[:] = self.read(i); return self.buffer, self.labels[i]
    # fixed
    def __getitem__(self, i): return self.read(i), self.labels[i]

What to do
    Return and keep a separate tensor for each sample: `self.buffer.clone()`, `observation.copy()`.

Safety
    It changes nothing, and the program's own data set is not asked for anything. A data set is looked at under
    `steady run`, where torch stacks single samples and it is small enough to be copied (16 MiB). Batches in which a
    program repeats one prompt, data sets that hold equal samples, and one batch that is trained on again and again are
    not reported.

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
    how = record.aliased or record.same_memory
    if not how:
        return None
    fix = "keep and return a separate tensor for each sample: a copy of what is written into again"
    return loop_finding(RULE, record, how, fix=fix, phase="data")


def _record(aliased: str) -> LoopRecord:
    record = LoopRecord(aliased=aliased)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("all rows of each of 4 batches are the same")


def NEAR_MISS() -> LoopRecord:
    return _record("")
