"""The averaged weights that are evaluated and kept are still the initial ones.

What it sees
    A model of averaged weights (`torch.optim.swa_utils.AveragedModel`) was called at two or more points of the
    training, the training has ended, and `update_parameters` was never called.

Why it hurts
    What is evaluated and saved is the network as it was before training.

Smallest example
    if epoch >= swa_start: average.update_parameters(model)    # swa_start is beyond the last epoch
    # fixed
    average.update_parameters(model)                           # after each update, or in the last quarter of the epochs

What to do
    Call `update_parameters` after the updates that are to count, and look at `average.n_averaged`.

Safety
    It changes nothing. It is seen under `steady run`, when the program ends. An average that begins late in a run, and
    one that is made and not used, are not reported.

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
    fix = "call update_parameters after the updates that are to count"
    return loop_finding(RULE, record, record.idle_average, fix=fix, phase="state")


def _record(idle: str) -> LoopRecord:
    record = LoopRecord(idle_average=idle)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("averaged weights were used after 20 and 40 updates and never updated")


def NEAR_MISS() -> LoopRecord:
    return _record("")
