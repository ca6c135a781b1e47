"""Reset only the bad entries of moments and buffers.

What it sees
    Optimizer state or buffers that hold a bad value before the step.

Why it hurts
    Everything else in them is worth keeping.

Smallest example
    torch.nan_to_num_(state["exp_avg_sq"], nan=float(state["exp_avg_sq"].nanmean()))
    # instead of
    optimizer.load_state_dict(poisoned)

What to do
    Replace bad entries by the mean of the finite ones.

Safety
    Close: a few entries adapt again.

References
    https://github.com/NVIDIA-NeMo/RL/issues/3544
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.state_changes import ResetBadState
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX151", "reset_bad_state", "Reset only the bad entries of moments and buffers.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    kinds = {kind for kind, _ in context.evidence.bad_before if kind in ("optimizer", "buffer")}
    kinds |= {c.kind for c in context.evidence.changes if c.out_of_range and c.kind in ("optimizer", "buffer")}
    if kinds:
        yield Proposal(
            code=RULE.code,
            slug="reset_bad_state",
            change=f"bad entries of {' and '.join(sorted(kinds))} state reset",
            make=lambda: ResetBadState(kinds),
            safety="close",
        )
