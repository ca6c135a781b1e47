"""Raise the learning rate.

What it sees
    Updates that are rounded away because they are smaller than the spacing of the weights.

Why it hurts
    In bfloat16 numbers near one are 0.0078 apart.

Smallest example
    for group in optimizer.param_groups: group["lr"] *= 100
    # instead of
    torch.optim.SGD(model.bfloat16().parameters(), lr=1e-6)

What to do
    Prefer float32 weights; raise the rate only if the recipe allows it.

Safety
    Behavioural.

References
    https://arxiv.org/abs/2010.06192
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import mul

from ....records.rules import Rule
from ...interventions.optimizer_changes import Options
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX142", "lr_up", "Raise the learning rate.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.cause == "lost_update" and context.evidence.kind == "unmoved":
        for factor in (10.0, 100.0):
            yield Proposal(
                code=RULE.code,
                slug="lr_up",
                change=f"learning rate times {factor:g}",
                make=partial(Options, lr=partial(mul, factor)),
            )
