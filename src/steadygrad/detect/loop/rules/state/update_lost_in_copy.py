"""An optimizer's step leaves weights as they were: what it computes is written to a copy.

What it sees
    Weights in float32 have a gradient and a rate, and three steps in a row of an optimizer that is not torch's own left
    every element as it was, while other weights were moved, or while the optimizer kept nothing of the gradient. Where
    it may have put the update off, nine steps.

Why it hurts
    Indexing with a mask or with indices, a change of dtype and a reshape of what is not contiguous all give a new
    tensor. An update in place of that is thrown away with it, and the weights never learn.

Smallest example
    weight.data[mask].sub_(rate * gradient[mask])
    # fixed
    weight.data[mask] -= rate * gradient[mask]

What to do
    Write to the parameter itself: assign to the index, or use `weight.copy_(...)` at the end of the step.

Safety
    It changes nothing. It is reported once in a run. Steps that are too small for the dtype, and weights that were
    moved once, are not reported.

References
    https://docs.pytorch.org/docs/stable/tensor_view.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ....make_finding import listed
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY437",
    "update_lost_in_copy",
    "An optimizer's step leaves weights as they were: what it computes is written to a copy.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.unmoved:
        return None
    return loop_finding(
        RULE,
        record,
        f"the optimizer's steps never change {listed(record.unmoved)}, though they have a gradient and a rate: what it "
        "computes is written to a copy",
        fix="write to the parameter itself: indexing with a mask, a change of dtype and a reshape give a copy",
        subject=record.unmoved[0],
        phase="optimizer",
        names=list(record.unmoved),
    )


def _record(*unmoved: str) -> LoopRecord:
    record = LoopRecord(unmoved=unmoved)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("head.weight")


def NEAR_MISS() -> LoopRecord:
    return _record()
