"""The averaged weights that are evaluated and kept are still the initial ones.

What it sees
    A model of averaged weights (`torch.optim.swa_utils.AveragedModel`) was called at two or more points of the
    training, the training has ended, and `update_parameters` was never called. Or after 12 or 100 updates every copy
    of the weights in the process is what it was before the first one, and either it was written at most of the updates,
    or a line of the program computes an average of weights and keeps it nowhere.

Why it hurts
    What is evaluated and saved is the network as it was before training.

Smallest example
    for s, p in zip(average.parameters(), model.parameters()): s = decay * s + (1 - decay) * p
    # fixed
    for s, p in zip(average.parameters(), model.parameters()): s.lerp_(p, 1 - decay)

What to do
    Write the average into the copy, in place (`lerp_`, `mul_`, `copy_`), after the updates that are to count. With
    torch's average call `update_parameters` there, and look at `average.n_averaged`.

Safety
    It changes nothing. Torch's average is judged under `steady run`, when the program ends. An average that begins
    late in a run, one that is made and not used, and a frozen copy (a reference, a teacher, the weights at the start)
    in a program that throws no average away, or beside a copy that follows, are not reported.

References
    https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY468", "ema_never_updated", "The averaged weights that are evaluated and kept are still the initial ones."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.idle_average:
        return None
    fix = "write the average into the averaged weights after the updates that are to count"
    return loop_finding(RULE, record, record.idle_average, fix=fix, phase="state")


def _record(idle: str) -> LoopRecord:
    record = LoopRecord(idle_average=idle)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("averaged weights were used after 20 and 40 updates and never updated")


def NEAR_MISS() -> LoopRecord:
    return _record("")
