"""One parameter group runs with a learning rate of zero, and no schedule raises it.

What it sees
    At the first three updates one group had a rate of zero while another had not, its base rate is zero too, and it
    had a rate above zero when it was first seen, or holds the last layer of the model. Or a group of any layers had a
    rate of zero from the first update to the last, of 20 or more, its weights are as an initialisation draws them, and
    gradients came to them.

Why it hurts
    The parameters of that group are in the optimizer, get gradients, and never learn.

Smallest example
    for group in optimizer.param_groups: group["lr"] = rate * group.get("scale", 0.0)
    # fixed
    for group in optimizer.param_groups: group["lr"] = rate * group.get("scale", 1.0)

What to do
    Give the group its rate. If it is meant to be frozen, use `requires_grad_(False)`: that says so and saves its
    gradient.

Safety
    It changes nothing. It is reported once in a run. A group that waits for its schedule is not reported, nor is
    one that was made with a rate of zero and does not hold the last layer, until the training has ended: layers are
    unfrozen one by one that way. Weights that were trained before may be left as they are on purpose.

References
    https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options
"""

from __future__ import annotations

from collections.abc import Sequence

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY425", "wrong_param_group_lr", "One parameter group runs with a learning rate of zero, and no schedule raises it."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if record.never_raised:
        return _finding(record, record.never_raised, " in all of the training, and its weights are as they were drawn")
    recent = record.recent(3)
    if not recent or record.count > 3:
        return None
    places = range(min(len(update.rates) for update in recent))
    zero = [place for place in places if all(update.rates[place] == 0 for update in recent)]
    moving = all(any(update.rates) for update in recent)
    zero = [place for place in zero if not any(update.can_rise[place] for update in recent)]
    if not zero or not moving:
        return None
    return _finding(record, zero)


def _finding(record: LoopRecord, zero: Sequence[int], when: str = "") -> Finding:
    others = max(record.last.rates)
    return loop_finding(
        RULE,
        record,
        f"parameter group {zero[0]} has a learning rate of 0 while the others have {others:.3g}{when}",
        fix=f"give optimizer.param_groups[{zero[0]}] its learning rate, or freeze its parameters",
        subject=f"group {zero[0]}",
        phase="optimizer",
        groups=list(zero),
    )


def _record(*, can_rise: bool) -> LoopRecord:
    record = LoopRecord()
    for _ in range(3):
        record.add(UpdateSeen(rates=(1e-3, 0.0), can_rise=(False, can_rise)))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(can_rise=False)


def NEAR_MISS() -> LoopRecord:
    """Its schedule raises it later."""
    return _record(can_rise=True)
