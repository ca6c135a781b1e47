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

from ...rules import Rule
from ..replay import Change
from ..surgery.optimizer import Recompute
from ..ward import Proposal, Ward

RULE = Rule("RX154", "recompute_step", "Run the step again.")


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.evidence.reproduced[1] and ward.evidence.reproduced[0] == 0:
        yield Proposal(
            code=RULE.code,
            slug="recompute_step",
            change="the step run again",
            make=Change,
            safety="exact",
            lasting=False,
        )
    elif ward.evidence.kind == "tampered_gradient":
        yield Proposal(
            code=RULE.code,
            slug="recompute_step",
            change="the step taken from a fresh forward and backward",
            make=Recompute,
            safety="exact",
            lasting=False,
        )
