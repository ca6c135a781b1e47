"""The optimizer's state was cast to a narrower dtype, by loading it or by the program.

What it sees
    State was loaded into the optimizer, and afterwards it has a dtype with fewer bits than what was given. Or between
    two updates it was given the dtype of its parameter, which has fewer bits than the state had.

Why it hurts
    `load_state_dict` casts state to the dtype of the parameter, and so does `state.to(parameter)`. A second moment in
    bfloat16 has eight bits: what is added to it is mostly lost, and it no longer follows the gradients.

Smallest example
    optimizer.load_state_dict(saved)          # float32 moments, bfloat16 weights
    # fixed
    optimizer.load_state_dict(saved)
    for weights, state in optimizer.state.items(): state["exp_avg_sq"] = moments[weights].float()

What to do
    Keep the weights that are trained in float32, or restore the dtype of the state after loading.

Safety
    It changes nothing. It is reported once in a run.

References
    https://github.com/pytorch/pytorch/issues/80809
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY430",
    "dtype_downcast_of_moments",
    "The optimizer's state was cast to a narrower dtype, by loading it or by the program.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if record.narrowed is None:
        return None
    before, after = record.narrowed
    return loop_finding(
        RULE,
        record,
        f"the optimizer's state was cast from {before} to {after}: small changes of its moments are lost",
        fix="restore the dtype of the moments after loading or moving them, or train float32 weights",
        phase="state",
        before=before,
        after=after,
    )


def _record(narrowed: tuple[str, str] | None) -> LoopRecord:
    record = LoopRecord(narrowed=narrowed)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record(("float32", "bfloat16"))


def NEAR_MISS() -> LoopRecord:
    return _record(None)
