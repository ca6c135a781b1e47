"""The data loader is restarted for every batch and delivers the same samples again.

What it sees
    Three iterators in a row of a loader with more than one batch were asked for one batch only, and all three gave
    the same samples.

Why it hurts
    The model sees one batch for ever: the training loss falls and nothing else is learnt.

Smallest example
    while True: batch = next(iter(loader))
    # fixed
    for batch in loader: ...

What to do
    Make one iterator for each epoch.

Safety
    It changes nothing. It is reported once in a run. Several updates on one batch, full-batch training and shuffled
    loaders are not reported.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY434", "repeated_batch", "The data loader is restarted for every batch and delivers the same samples again."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.repeated or record.count < 3:  # an iterator of the usual kind has given more by then
        return None
    return loop_finding(
        RULE,
        record,
        f"the same batch is delivered again and again: {record.repeated}",
        fix="make one iterator for each epoch: for batch in loader",
        phase="data",
    )


def _record(repeated: str) -> LoopRecord:
    record = LoopRecord(repeated=repeated)
    for _ in range(3):
        record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("a loader of 40 batches was begun 3 times in a row and gave its first batch only")


def NEAR_MISS() -> LoopRecord:
    return _record("")
