"""Put a weight back to what it was.

What it sees
    A weight that no update changed and that is not what it was after the last step.

Why it hurts
    A flipped bit stays until somebody writes the old value.

Smallest example
    weight.copy_(last_good)

What to do
    Restore it from the last good snapshot or another replica.

Safety
    Exact.

References
    https://arxiv.org/abs/2102.11245
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..surgery.state import Reverted, TameOutliers
from ..ward import Proposal, Ward

RULE = Rule("RX152", "restore_weight", "Put a weight back to what it was.")


def propose(ward: Ward) -> Iterator[Proposal]:
    changed = {(c.kind, c.name) for c in ward.evidence.changes if c.kind == "parameter" and c.out_of_range}
    if changed:
        yield Proposal(
            code=RULE.code,
            slug="restore_weight",
            change=f"{', '.join(sorted(name for _, name in changed))} as after the last step",
            make=lambda: Reverted(ward.patient, changed),
            safety="exact",
        )
    elif ward.evidence.huge_state is not None:
        name = ward.evidence.huge_state[0]
        yield Proposal(
            code=RULE.code,
            slug="restore_weight",
            change=f"the outlying entries of {name} set to zero",
            make=lambda: TameOutliers(name),
            safety="close",
        )
