"""Checkpoint without re-entry.

What it sees
    Trainable parameters inside a re-entrant checkpoint whose input needs no gradient.

Why it hurts
    The newer implementation hooks saved tensors and does not depend on its inputs.

Smallest example
    checkpoint(block, x, use_reentrant=False)
    # instead of
    checkpoint(block, x, use_reentrant=True)

What to do
    Pass use_reentrant=False.

Safety
    Behavioural: more parameters learn.

References
    https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.module_changes import OpenCheckpoints
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX161", "non_reentrant", "Checkpoint without re-entry.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.cause == "no_trainable_grad" and context.evidence.kind == "zero_gradient":
        yield Proposal(
            code=RULE.code,
            slug="non_reentrant",
            change="checkpoints run without re-entry",
            make=lambda: OpenCheckpoints(reentrant=False),
        )
