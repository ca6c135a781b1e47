"""All inputs are one number: nothing of the samples is left in them.

What it sees
    In four batches of different samples, every input is filled with one and the same number, and the labels differ.

Why it hurts
    The model can learn how frequent the labels are, and nothing else.

Smallest example
    pixels = image // 255
    # fixed
    pixels = image / 255

What to do
    Look at one sample, and at what each transform makes of it: a division of whole numbers, a cast before a scale.

Safety
    It changes nothing and asks the data set for nothing. It is seen under `steady run`, where torch stacks single
    samples. Data sets with another input that differs, such as token ids beside a mask of ones, are not reported, nor
    are inputs that are the same for all samples and have several values.

References
    https://docs.pytorch.org/docs/stable/generated/torch.floor_divide.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule("SY466", "constant_inputs", "All inputs are one number: nothing of the samples is left in them.")


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.constant:
        return None
    fix = "look at what each transform makes of a sample: a division of whole numbers, a cast before a scale"
    return loop_finding(RULE, record, record.constant, fix=fix, phase="data")


def _record(constant: str) -> LoopRecord:
    record = LoopRecord(constant=constant)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("all numbers of the inputs of 4 batches are 0, and the labels differ")


def NEAR_MISS() -> LoopRecord:
    return _record("")
