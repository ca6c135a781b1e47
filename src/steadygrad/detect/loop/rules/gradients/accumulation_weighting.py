"""Micro-batches with unequal numbers of targets count alike: the mean of their means is not the mean.

What it sees
    In two updates in a row the micro-batches had very different numbers of predictions that count, and the gradient
    at each prediction was smaller by the same factor.

Why it hurts
    A token of a short micro-batch weighs as much as many tokens of a long one. The result depends on how the batch
    was split.

Smallest example
    (F.cross_entropy(logits, labels, ignore_index=-100) / num_micro_batches).backward()
    # fixed
    (F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / num_tokens_of_all).backward()

What to do
    Sum the loss of each micro-batch and divide by the number of targets of the whole update.

Safety
    It changes nothing. It is reported once in a run. Micro-batches whose numbers of targets differ by less than a
    factor of three are not reported.

References
    https://huggingface.co/blog/gradient_accumulation
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY436",
    "accumulation_weighting",
    "Micro-batches with unequal numbers of targets count alike: the mean of their means is not the mean.",
)

_UNEQUAL = 3.0
_ALIKE = 1.6


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if not recent or not all(_is_mean_of_means(update) for update in recent):
        return None
    counts = [count for count, _ in recent[-1].pulls]
    return loop_finding(
        RULE,
        record,
        f"micro-batches of {min(counts):.0f} and of {max(counts):.0f} targets have the same weight in one update",
        fix="sum the losses of the micro-batches and divide by the number of targets of the whole update",
        phase="loss",
        counts=counts,
    )


def _is_mean_of_means(update: UpdateSeen) -> bool:
    """Whether the gradients of all micro-batches are of one size although one has many more targets."""
    pulls = [(count, size) for count, size in update.pulls if count > 0 and size > 0]
    if len(pulls) < 2 or update.thrown_away or update.in_turn or update.replaced:
        return False
    counts, totals = [count for count, _ in pulls], [size for _, size in pulls]
    return max(counts) >= _UNEQUAL * min(counts) and max(totals) <= _ALIKE * min(totals)


def _record(*sizes: float) -> LoopRecord:
    record = LoopRecord()
    for _ in range(2):
        record.add(UpdateSeen(backwards=2, pulls=tuple(zip((192.0, 8.0), sizes, strict=True))))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(1.8, 1.9)


def NEAR_MISS() -> LoopRecord:
    """Sums: the gradient grows with the number of targets."""
    return _record(192.0, 8.0)
