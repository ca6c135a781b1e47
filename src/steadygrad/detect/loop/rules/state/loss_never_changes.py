"""The loss never changes because the model is compared with itself: the reference is the trained model.

What it sees
    Four updates in a row had the same loss, bit for bit, with a gradient that is not zero, and in each of them the
    model was called on the same tensors with and without gradients.

Why it hurts
    A preference or distillation loss measures the distance from a reference. If the reference is the trained model
    itself, the distance is always zero: the loss stays at log 2 or 0 and says nothing, and nothing holds the
    weights.

Smallest example
    reference = model
    # fixed
    reference = copy.deepcopy(model).requires_grad_(False)

What to do
    Make the reference a deep copy, before training begins.

Safety
    It changes nothing. It is reported once in a run. A loss that changes at all is not reported.

References
    https://github.com/huggingface/trl/issues/1627
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY432",
    "loss_never_changes",
    "The loss never changes because the model is compared with itself: the reference is the trained model.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(4)
    if not recent or not record.same_loss() or not all(update.compares_itself for update in recent):
        return None
    settled = [update for update in record.updates if update.loss is not None][-4:]
    if not all(update.grad_norm for update in settled):
        return None
    return loop_finding(
        RULE,
        record,
        f"the loss is {settled[-1].loss:.6g} at every update because the reference is the trained model itself",
        fix="make the reference a deep copy: reference = copy.deepcopy(model).requires_grad_(False)",
        phase="loss",
        cause={"code": "SY448", "slug": "reference_aliased"},
    )


def _record(*losses: float) -> LoopRecord:
    record = LoopRecord()
    for loss in losses:
        record.add(UpdateSeen(loss=loss, grad_norm=1.0, compares_itself=True))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(0.6931, 0.6931, 0.6931, 0.6931)


def NEAR_MISS() -> LoopRecord:
    """The reference is another model: the loss moves."""
    return _record(0.6931, 0.6931, 0.6931, 0.6929)
