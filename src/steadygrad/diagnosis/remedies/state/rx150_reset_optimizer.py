"""Forget all optimizer state.

What it sees
    Bad or rounded moments.

Why it hurts
    Adam starts over within a few steps; a bad moment never leaves by itself.

Smallest example
    optimizer.state.clear()
    # instead of
    optimizer.load_state_dict(poisoned)

What to do
    Prefer resetting only what is bad (RX151).

Safety
    Behavioural: a few steps of adaptation are lost.

References
    https://github.com/NVIDIA-NeMo/RL/issues/3544
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.optimizer_changes import ResetOptimizer
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX150", "reset_optimizer", "Forget all optimizer state.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    bad = any(kind == "optimizer" for kind, _ in context.evidence.bad_before)
    if (
        bad
        or context.evidence.moments_without_spread > 0.01
        or any(c.kind == "optimizer" for c in context.evidence.changes)
    ):
        yield Proposal(code=RULE.code, slug="reset_optimizer", change="optimizer state cleared", make=ResetOptimizer)
