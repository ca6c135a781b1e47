"""The schedule moves the rate of an optimizer that is never stepped; the one that trains keeps its rate.

What it sees
    A schedule of torch was stepped and has changed the rates of an optimizer that has made no update. The same
    parameters are trained by another optimizer, which has no schedule, and whose rates have stayed the same.

Why it hurts
    Warm-up and decay do not take place. The program prints the rates of the schedule, and nothing shows that they are
    not in use.

Smallest example
    schedule = CosineAnnealingLR(optimizer, 1000); optimizer = AdamW(model.parameters())
    # fixed
    optimizer = AdamW(model.parameters()); schedule = CosineAnnealingLR(optimizer, 1000)

What to do
    Make the schedule after the optimizer, and again whenever the optimizer is made anew.

Safety
    It changes nothing. It is reported once in a run. Wrappers that share the groups of an optimizer, a schedule whose
    rates the program copies, and the finished schedule of an earlier phase are not reported.

References
    https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY460",
    "schedule_of_another_optimizer",
    "The schedule moves the rate of an optimizer that is never stepped; the one that trains keeps its rate.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.idle_schedule or len({update.rates for update in record.updates}) > 1:
        return None
    return loop_finding(
        RULE,
        record,
        f"{record.idle_schedule}, and the rate of the optimizer that trains the same parameters has stayed "
        f"{max(record.last.rates, default=0.0):.3g}",
        fix="make the schedule after the optimizer that is stepped, and give it that one",
    )


def _record(*rates: float) -> LoopRecord:
    record = LoopRecord(idle_schedule="CosineAnnealingLR was stepped 30 times for an optimizer that made no update")
    for rate in rates:
        record.add(UpdateSeen(rates=(rate,)))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(1e-3, 1e-3, 1e-3)


def NEAR_MISS() -> LoopRecord:
    """The program copies the rates from one optimizer to the other."""
    return _record(1e-3, 9e-4, 8e-4)
