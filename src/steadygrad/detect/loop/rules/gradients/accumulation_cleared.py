"""Gradients are cleared at every micro-batch: only the last one of each update counts.

What it sees
    In two updates in a row there were several backward passes over different tensors, and each but the last had its
    gradients cleared before the next.

Why it hurts
    The batches before the last are computed and thrown away. What they alone could teach, such as another task or a
    rare class, is never learnt.

Smallest example
    for i, batch in enumerate(loader):
        optimizer.zero_grad(); loss_fn(model, batch).backward()
        if (i + 1) % 4 == 0: optimizer.step()
    # fixed
    for i, batch in enumerate(loader):
        loss_fn(model, batch).backward()
        if (i + 1) % 4 == 0: optimizer.step(); optimizer.zero_grad()

What to do
    Clear the gradients once for each update, right after it.

Safety
    It changes nothing. It is reported once in a run. Adversarial training, penalties on the gradient, losses whose
    gradients the program combines by itself, and trainings that take turns are not reported.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY422",
    "accumulation_cleared",
    "Gradients are cleared at every micro-batch: only the last one of each update counts.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if not recent or not all(_is_cleared(update) for update in recent):
        return None
    lost, passes = recent[-1].thrown_away, recent[-1].backwards
    return loop_finding(
        RULE,
        record,
        f"gradients are cleared at every micro-batch: {lost} of {passes} backward passes an update are thrown away",
        fix="clear the gradients once for each update, right after it, and not at every micro-batch",
        thrown_away=lost,
        backwards=passes,
    )


def _is_cleared(update: UpdateSeen) -> bool:
    ours = update.closure or update.in_turn or update.one_batch or update.replaced
    return update.all_but_last and not ours


def _record(*, one_batch: bool) -> LoopRecord:
    record = LoopRecord()
    for _ in range(2):
        record.add(UpdateSeen(backwards=3, thrown_away=2, all_but_last=True, one_batch=one_batch))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(one_batch=False)


def NEAR_MISS() -> LoopRecord:
    """An attack on the input of the same batch: its gradients are meant to be thrown away."""
    return _record(one_batch=True)
