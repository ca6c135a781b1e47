"""The micro-batches after the last full window of an epoch are thrown away, every epoch the same number.

What it sees
    Several updates were made of the same number of micro-batches; then fewer were run and cleared without an
    update; and the same happened again after as many updates.

Why it hurts
    If the data come in the same order in every epoch, the same samples are never learnt from.

Smallest example
    for epoch in range(9):
        optimizer.zero_grad()
        for i, batch in enumerate(loader):      # 10 batches
            loss_fn(model, batch).backward()
            if (i + 1) % 4 == 0: optimizer.step(); optimizer.zero_grad()
    # fixed
            if (i + 1) % 4 == 0 or i + 1 == len(loader): optimizer.step(); optimizer.zero_grad()

What to do
    Make an update at the end of the epoch as well, or do not clear the gradients when an epoch begins.

Safety
    It changes nothing. It is reported once in a run. Batches that the loop leaves out now and then are not
    reported.

References
    https://github.com/huggingface/transformers/issues/35651
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY423",
    "accumulation_tail_dropped",
    "The micro-batches after the last full window of an epoch are thrown away, every epoch the same number.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure. Windows with a tail are compared with each other and with the full ones between them."""
    if not record.updates or not record.last.thrown_away:
        return None
    updates = list(record.updates)
    tails = [place for place, update in enumerate(updates) if update.thrown_away]
    if len(tails) < 2:
        return None
    first, second = tails[-2], tails[-1]
    full = updates[second].backwards - updates[second].thrown_away
    between = updates[first + 1 : second]
    # A window that was not seen from its beginning has no backward passes.
    earlier = [update for update in updates[:first][-len(between) - 1 :] if update.backwards]
    same = (
        updates[first].thrown_away == updates[second].thrown_away < full
        and updates[first].backwards == updates[second].backwards
        and full > 1
        and all(update.backwards == full for update in (*earlier, *between))
        and first >= len(between)
        and not any(update.closure or update.in_turn or update.one_batch for update in updates[first : second + 1])
    )
    if not same or not earlier:
        return None
    lost = updates[second].thrown_away
    return loop_finding(
        RULE,
        record,
        f"after every {len(between) + 1} updates of {full} micro-batches the gradients of {lost} more are thrown away",
        fix="make an update at the end of an epoch as well",
        phase="loop",
        thrown_away=lost,
        window=full,
    )


def _record(*backwards: int) -> LoopRecord:
    record = LoopRecord()
    for each in backwards:
        record.add(UpdateSeen(backwards=each, thrown_away=max(0, each - 4)))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(4, 4, 6, 4, 6)


def NEAR_MISS() -> LoopRecord:
    """Batches left out now and then."""
    return _record(4, 4, 6, 4, 5)
