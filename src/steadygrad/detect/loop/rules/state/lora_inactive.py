"""No low-rank adapter takes part in the forward pass any more.

What it sees
    In two updates in a row none of the adapters got a gradient, or one of zero, while other parameters did. An adapter
    is known by its shapes: two small trained matrices beside a frozen large one.

Why it hurts
    The adapters are merged into the base weights, switched off, or scaled by zero (`alpha // rank`), so what they were
    to learn is not learnt.

Smallest example
    model.merge_adapter(); sample(model)
    # fixed
    model.merge_adapter(); sample(model); model.unmerge_adapter()

What to do
    Unmerge or enable the adapters before training goes on, and look at their scale.

Safety
    It changes nothing. It is reported once in a run. One adapter of several without a gradient, as in a mixture, is
    not reported.

References
    https://github.com/huggingface/peft/issues/3580
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule("SY431", "lora_inactive", "No low-rank adapter takes part in the forward pass any more.")


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if not recent or not all(update.idle_adapters for update in recent):
        return None
    names = recent[-1].idle_adapters
    return loop_finding(
        RULE,
        record,
        f"the low-rank adapters get no gradient: they are merged, switched off or scaled by 0, as in {names[0]}",
        fix="unmerge or enable the adapters before training goes on, and look at their scale",
        subject=names[0],
        phase="state",
        names=list(names),
    )


def _record(*idle: tuple[str, ...]) -> LoopRecord:
    record = LoopRecord()
    for names in idle:
        record.add(UpdateSeen(idle_adapters=names))
    return record


def SPECIMEN() -> LoopRecord:
    return _record((), ("layers.0.q",), ("layers.0.q",))


def NEAR_MISS() -> LoopRecord:
    return _record(("layers.0.q",), (), ("layers.0.q",))
