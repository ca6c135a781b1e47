"""Run the step again.

What it sees
    A step that is finite when it is replayed, or a gradient that backward did not make.

Why it hurts
    A fault that does not repeat needs no other remedy.

Smallest example
    optimizer.zero_grad(); loss_fn(model, batch).backward(); optimizer.step()
    # instead of
    optimizer.step()  # with a gradient that backward did not compute

What to do
    Recompute, count how often it happens on this device, and take the device out if it does again.

Safety
    Exact.

References
    https://arxiv.org/abs/2102.11245
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.optimizer_changes import Recompute
from ...replay.replay_step import ReplayChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX154", "recompute_step", "Run the step again.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.evidence.reproduced[1] and context.evidence.reproduced[0] == 0:
        yield Proposal(
            code=RULE.code,
            slug="recompute_step",
            change="the step run again",
            make=ReplayChange,
            safety="exact",
            lasting=False,
        )
    elif context.evidence.kind == "tampered_gradient":
        yield Proposal(
            code=RULE.code,
            slug="recompute_step",
            change="the step taken from a fresh forward and backward",
            make=Recompute,
            safety="exact",
            lasting=False,
        )
