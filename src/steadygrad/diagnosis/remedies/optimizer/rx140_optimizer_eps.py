"""Raise the optimizer's eps to what the dtype can hold.

What it sees
    A division by zero inside the optimizer step.

Why it hurts
    eps=1e-8 is zero in float16.

Smallest example
    torch.optim.AdamW(model.parameters(), eps=1e-4)
    # instead of
    torch.optim.AdamW(model.half().parameters(), eps=1e-8)

What to do
    Raise eps, or keep the weights in float32.

Safety
    Behavioural: entries with tiny gradients move less.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ....detect.tensors.foreign_objects import isinstance
from ....records.rules import Rule
from ...interventions.optimizer_changes import Options
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX140", "optimizer_eps", "Raise the optimizer's eps to what the dtype can hold.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.evidence.phase != "optimizer" or context.silent:
        return
    for floor in (1e-4,) if context.fp16 else (1e-8, 1e-4):
        yield Proposal(
            code=RULE.code,
            slug=RULE.slug,
            change=f"optimizer eps of at least {floor:g}",
            make=partial(Options, eps=partial(_at_least, floor)),
            if_needed=floor > 1e-8,
        )


def _at_least(floor: float, eps: Any) -> Any:
    """The option with this floor; an optimizer with several takes them as a tuple."""
    if isinstance(eps, tuple | list):
        return type(eps)(_at_least(floor, each) for each in eps)
    return max(float(eps), floor) if isinstance(eps, int | float) else eps
