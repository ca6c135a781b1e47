"""Lower the learning rate.

What it sees
    A loss that rose over finite steps before it overflowed, or a jump after an update out of line.

Why it hurts
    Steps longer than the valley is wide climb its walls.

Smallest example
    for group in optimizer.param_groups: group["lr"] *= 0.01

What to do
    Go back to before the rise, lower the rate, and raise it again slowly.

Safety
    Behavioural.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..surgery.optimizer import Options
from ..ward import Proposal, Ward

RULE = Rule("RX141", "lr_down", "Lower the learning rate.")


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.cause == "lr_divergence" or ward.evidence.kind == "spike":
        yield Proposal(
            code=RULE.code,
            slug="lr_down",
            change="learning rate times 0.01",
            make=lambda: Options(lr=lambda lr: lr * 0.01),
            rewind=ward.evidence.kind != "spike",
        )
