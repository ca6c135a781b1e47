"""Every step is clipped by orders of magnitude: the clip limit sets a vanishing step size.

What it sees
    Five updates in a row had their gradients cut to the same norm, to less than a hundredth of what backward gave,
    and the optimizer's step follows the size of the gradient.

Why it hurts
    The learning rate means nothing any more: each step has the length rate times limit, and the loss creeps.

Smallest example
    loss = F.cross_entropy(logits, labels, reduction="sum"); loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    # fixed
    loss = F.cross_entropy(logits, labels); loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

What to do
    Raise the limit to about the usual norm of the gradients. Adam and other optimizers that divide by the
    gradient's size are not affected.

Safety
    It changes nothing. It is reported once in a run. Gradients that are divided by a loss scale or by a number of
    tokens are not reported.

References
    https://github.com/alibaba/Pai-Megatron-Patch/issues/579
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import GradientSize, LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY426",
    "clip_throttles",
    "Every step is clipped by orders of magnitude: the clip limit sets a vanishing step size.",
)

_ROW = 5
_FOLLOWS = 0.1
"""An element that is moved further, in units of the rate, does not follow the gradient's size."""


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    sizes = record.sizes[-_ROW:]
    if len(sizes) < _ROW or any(size.at_update <= 0 or size.at_update > 0.01 * size.after_backward for size in sizes):
        return None
    norms = [size.at_update for size in sizes]
    before = [size.after_backward for size in sizes]
    constant = max(norms) - min(norms) <= 1e-3 * max(norms)
    varies = max(before) - min(before) > 1e-3 * max(before)
    if not constant or not varies or max(size.per_rate for size in sizes) > _FOLLOWS:
        return None
    times = sorted(size.after_backward / size.at_update for size in sizes)[_ROW // 2]
    return loop_finding(
        RULE,
        record,
        f"every update is clipped to a gradient norm of {norms[-1]:.3g}, {times:.0f} times less than backward gave",
        fix=f"raise the clip limit to about {sorted(before)[_ROW // 2]:.2g}, the usual norm, or leave the clipping out",
        phase="optimizer",
        times=times,
        limit=norms[-1],
    )


def _record(per_rate: float) -> LoopRecord:
    record = LoopRecord()
    record.add(UpdateSeen())
    record.sizes += [GradientSize(20.0 + number, 0.01, per_rate) for number in range(_ROW)]
    return record


def SPECIMEN() -> LoopRecord:
    return _record(per_rate=0.003)


def NEAR_MISS() -> LoopRecord:
    """Adam divides by the gradient's size: the clip has no effect."""
    return _record(per_rate=0.9)
