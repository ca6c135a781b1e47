"""Gradients are clipped before backward computes them: the updates are not clipped at all.

What it sees
    A dozen calls of `clip_grad_norm_` found gradients of zero or none, no call found anything else, and the updates had
    gradients all the same.

Why it hurts
    The limit has no effect: a batch with a large gradient moves the weights as far as it likes.

Smallest example
    optimizer.zero_grad(); clip_grad_norm_(model.parameters(), 1.0); loss.backward(); optimizer.step()
    # fixed
    optimizer.zero_grad(); loss.backward(); clip_grad_norm_(model.parameters(), 1.0); optimizer.step()

What to do
    Clip between backward and the optimizer's step.

Safety
    It changes nothing. It is seen under `steady run`, on a CPU, and reported once in a run. One call with a gradient,
    as after each of several backward passes, and parameters of another optimizer are enough for no report.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY464",
    "clipped_before_backward",
    "Gradients are clipped before backward computes them: the updates are not clipped at all.",
)
_ROW = 4


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    norms = [update.grad_norm for update in record.updates if update.grad_norm is not None]
    if not record.empty_clips or len(norms) < _ROW or not all(norm > 0 for norm in norms[-_ROW:]):
        return None
    return loop_finding(
        RULE,
        record,
        f"{record.empty_clips}, and the last update has a gradient norm of {norms[-1]:.3g}",
        fix="call clip_grad_norm_ after backward and before the optimizer's step",
    )


def _record(norm: float) -> LoopRecord:
    record = LoopRecord(empty_clips="clip_grad_norm_ was called 12 times and found gradients of zero each time")
    for _ in range(_ROW):
        record.add(UpdateSeen(grad_norm=norm))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(3.0)


def NEAR_MISS() -> LoopRecord:
    """There is nothing to clip: the updates have no gradient either."""
    return _record(0.0)
