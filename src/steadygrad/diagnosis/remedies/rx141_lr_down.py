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

from ...rules import Rule
from ..surgery.optimizer import Options
from ..ward import Proposal, Ward

JUMP = 3.0
"""A rate this many times the usual one of the steps before is no schedule: someone set it."""
RULE = Rule("RX141", "lr_down", "Lower the learning rate.")


def propose(ward: Ward) -> Iterator[Proposal]:
    spike = ward.evidence.kind == "spike" and ward.evidence.phase == "optimizer"
    if ward.cause != "lr_divergence" and not spike:
        return  # smaller steps from a bad batch or a bad state are still steps from there
    usual = ward.usual_rate
    rewind = ward.evidence.kind != "spike" or ward.evidence.risen
    if usual is not None and not 0 <= ward.evidence.rate <= JUMP * usual:
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
