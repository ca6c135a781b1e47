"""Let the gradient pass a rounding as if it were not there.

What it sees
    Trainable parameters whose output goes through round, floor, sign or the like before it reaches the loss.

Why it hurts
    Their derivative is zero wherever it exists.

Smallest example
    q = x + (torch.round(x) - x).detach()

What to do
    Use the straight-through estimator, or a soft rounding.

Safety
    Behavioural: a biased gradient in place of none.

References
    https://arxiv.org/abs/1308.3432
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...rules import Rule
from ..replay import Change
from ..silent import FLAT
from ..surgery.calls import CallSurgery
from ..ward import Proposal, Ward

RULE = Rule("RX163", "straight_through", "Let the gradient pass a rounding as if it were not there.")


def propose(ward: Ward) -> Iterator[Proposal]:
    origin = ward.origin
    if ward.evidence.kind != "zero_gradient" or origin is None or not origin.stack or origin.op not in FLAT:
        return
    file, _, line = origin.stack[0].rpartition(":")
    name = origin.op

    def passing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] + (func(*args, **kwargs) - args[0]).detach()

    def make() -> Change:
        return CallSurgery((file, int(line)), name, passing, ward.patient.facts.owners)

    yield Proposal(code=RULE.code, slug="straight_through", change=f"the gradient passes {name} unchanged", make=make)
