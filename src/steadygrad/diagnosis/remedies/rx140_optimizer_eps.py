"""Raise the optimizer's eps to what the dtype can hold.

What it sees
    A division by zero inside the optimizer step.

Why it hurts
    eps=1e-8 is zero in float16.

Smallest example
    torch.optim.AdamW(model.parameters(), eps=1e-4)

What to do
    Raise eps, or keep the weights in float32.

Safety
    Behavioural: entries with tiny gradients move less.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..surgery.optimizer import Options
from ..ward import Proposal, Ward

RULE = Rule("RX140", "optimizer_eps", "Raise the optimizer's eps to what the dtype can hold.")


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.evidence.phase == "optimizer" and not ward.silent:
        yield Proposal(
            code=RULE.code,
            slug="eps",
            change="optimizer eps of at least 1e-4",
            make=lambda: Options(eps=lambda eps: max(float(eps), 1e-4)),
        )
