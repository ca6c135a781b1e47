"""A moment, a stale gradient or a buffer was bad before the step began, or a number of the program is not finite.

What it sees
    The slice ends in optimizer state, a leftover .grad or a buffer that this step did not make; or in a number of the
    program's own (a weight of the loss, a class weight, a constant) that is NaN or infinite where it enters an op.

Why it hurts
    The batch is innocent and skipping it does not help: the poison is still there for the next one.

Smallest example
    optimizer.load_state_dict(checkpoint["optimizer"])  # exp_avg_sq holds a NaN
    # fixed
    optimizer.load_state_dict(last_good["optimizer"])  # the newest that `steady scan` calls clean

What to do
    Reset that state, restore it from the last good snapshot, clear stale gradients. Of a number: look where the
    program computes it; an empty count or a running average that met a NaN is the usual reason.

Safety
    Resetting a moment costs a few steps of adaptation; restoring costs nothing.

References
    https://github.com/NVIDIA-NeMo/RL/issues/3544
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule(
    "DX403",
    "poisoned_state",
    "A moment, a stale gradient or a buffer was bad before the step began, or a number of the program is not finite.",
)


def match(e: Evidence) -> Match | None:
    if e.number is not None:
        return Match(0.9, f"the program gave {e.op} the constant {e.number}: a plain number that is not finite")
    if e.phase != "state":
        return None
    if e.leaf is not None and e.leaf[0] in ("buffer", "optimizer", "grad"):
        return Match(0.92, f"{e.leaf[0]} {e.leaf[1]} was bad before the step")
    if e.leaf is not None and e.leaf[0] == "parameter":
        return Match(0.8, f"{e.leaf[1]} was bad before the step")
    return None
