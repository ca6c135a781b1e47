"""Lower the learning rate.

What it sees
    A loss that rose over finite steps before it overflowed, or a jump after an update out of line.

Why it hurts
    Steps longer than the valley is wide climb its walls.

Smallest example
    for group in optimizer.param_groups: group["lr"] *= 0.01
    # instead of
    torch.optim.SGD(model.parameters(), lr=10.0)

What to do
    Go back to before the rise, lower the rate, and raise it again slowly.

Safety
    Behavioural.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import mul

from ....records.rules import Rule
from ...interventions.optimizer_changes import Options
from ..remedy_context import Proposal, RemedyContext

JUMP = 3.0
"""A rate this many times the usual one of the steps before is no schedule: someone set it."""
RULE = Rule("RX141", "lr_down", "Lower the learning rate.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    spike = context.evidence.kind == "spike" and context.evidence.phase == "optimizer"
    if context.cause != "lr_divergence" and not spike:
        return  # smaller steps from a bad batch or a bad state are still steps from there
    usual = context.usual_rate
    rewind = context.evidence.kind != "spike" or context.evidence.risen
    if usual is not None and not 0 <= context.evidence.rate <= JUMP * usual:
        yield Proposal(
            code=RULE.code,
            slug="lr_down",
            change=f"learning rate back to {usual:.3g}, where it had been",
            make=lambda: Options(lr=lambda lr: lr if 0 <= lr <= usual else usual),
            rewind=rewind,
        )
    for factor in (0.01, 0.0001):
        yield Proposal(
            code=RULE.code,
            slug="lr_down",
            change=f"learning rate times {factor:g}",
            make=partial(Options, lr=partial(mul, factor)),
            rewind=rewind,
            if_needed=True,
        )
