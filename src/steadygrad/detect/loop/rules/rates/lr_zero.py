"""The learning rate has reached zero while training goes on.

What it sees
    Three updates in a row were made with a rate of zero, or five with less than a hundred-thousandth of the
    highest, after larger rates.

Why it hurts
    Nothing is learnt any more. The usual causes are a schedule that is stepped at every micro-batch or every batch
    though it counts updates or epochs, and a wrong number of steps.

Smallest example
    scheduler = PolynomialLR(optimizer, total_iters=len(loader))   # and six epochs
    # fixed
    scheduler = PolynomialLR(optimizer, total_iters=len(loader) * epochs)

What to do
    Give the schedule the number of updates of the whole run, and step it once for each update.

Safety
    It changes nothing. It is reported once in a run. A schedule that ends at zero with the last update, one that
    starts there, and one of torch's that raises the rate again by itself (restarts, a further part that is still to
    come) are not reported.

References
    https://github.com/huggingface/accelerate/issues/963
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule("SY424", "lr_zero", "The learning rate has reached zero while training goes on.")

_TINY = 1e-5


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    peak = record.peak_rate
    zero = record.recent(3)
    tiny = record.recent(5)
    at_zero = bool(zero) and all(update.rates and not any(update.rates) for update in zero)
    near_zero = bool(tiny) and all(update.rates and max(update.rates) < _TINY * peak for update in tiny)
    if peak <= 0 or not (at_zero or near_zero):
        return None
    rate = max(record.last.rates)
    return loop_finding(
        RULE,
        record,
        f"the learning rate is {rate:.3g} (it was {peak:.3g}) and training goes on: nothing is learnt any more",
        fix="give the schedule the number of updates of the whole run, and step it once for each update",
        rate=rate,
        peak=peak,
    )


def _record(*rates: float) -> LoopRecord:
    record = LoopRecord()
    for rate in rates:
        record.add(UpdateSeen(rates=(rate,)))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(1e-3, 5e-4, 0.0, 0.0, 0.0)


def NEAR_MISS() -> LoopRecord:
    """Warm-up from zero, and zero at the last update."""
    return _record(0.0, 1e-3, 5e-4, 0.0)
