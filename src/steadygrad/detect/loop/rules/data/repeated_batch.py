"""The same samples are delivered again and again though there are others.

What it sees
    Three iterators in a row of a loader with more than one batch were asked for one batch only, and all three gave
    the same samples. Or an epoch was cut at the same place four times, the loader was begun anew with the same first
    batches each time, and there are four times as many samples. Or each of several workers reads all of a stream, so
    that all of them give the same batch in turn. Or the model was given the same rows at eight updates in a row, and
    the list that they are drawn from grew all the time. Or a weighted sampler has weights for a tenth of the samples at
    most and draws each of them ten times or more in an epoch: weights of classes were given in the place of weights of
    samples.

Why it hurts
    The model sees one batch for ever: the training loss falls and nothing else is learnt.

Smallest example
    while True: batch = next(iter(loader))
    # fixed
    for batch in loader: ...

What to do
    Make one iterator for each epoch, and go on with one that was cut. Let each worker of a stream take its own part
    (`torch.utils.data.get_worker_info`). Draw from a replay memory at random, or renew its priorities.

Safety
    It changes nothing. It is reported once in a run. Several updates on one batch, full-batch training and shuffled
    loaders are not reported, nor is a list whose entries are whole batches.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule("SY434", "repeated_batch", "The same samples are delivered again and again though there are others.")


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if record.same_rows:
        how, fix = record.same_rows, "draw at random, or renew the priorities of what was drawn"
    elif record.few_drawn:
        how, fix = record.few_drawn, "give the sampler one weight for each sample: class_weights[targets]"
    elif record.repeated and record.count >= 3:  # an iterator of the usual kind has given more by then
        how = record.repeated
        fix = "make one iterator for each epoch and use all of it; let each worker of a stream take a part of it"
    else:
        return None
    return loop_finding(RULE, record, f"the same samples are delivered again and again: {how}", fix=fix, phase="data")


def _record(repeated: str) -> LoopRecord:
    record = LoopRecord(repeated=repeated)
    for _ in range(3):
        record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("a loader of 40 batches was begun 3 times in a row and gave its first batch only")


def NEAR_MISS() -> LoopRecord:
    return _record("")
