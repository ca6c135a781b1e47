"""The learning rate is too high: the loss grew without bound before anything overflowed.

What it sees
    A loss that rose many-fold over finite steps, with no state changed from outside, before the overflow or instead
    of it.

Why it hurts
    The overflow is the end of the story, not its beginning; skipping the last batch changes nothing.

Smallest example
    torch.optim.SGD(model.parameters(), lr=10.0)
    # fixed
    torch.optim.SGD(model.parameters(), lr=0.01)

What to do
    Lower the learning rate, warm up, clip; go back to a snapshot from before the rise.

Safety
    Behavioural: training takes another path.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

import math

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule(
    "DX501", "lr_divergence", "The learning rate is too high: the loss grew without bound before anything overflowed."
)

_ENORMOUS = 1e15


def match(e: Evidence) -> Match | None:
    if e.kind == "spike" and e.phase == "optimizer":
        grew = (
            f", the rate grew from {e.earlier_rate:.3g} to {e.rate:.3g}" if (e.earlier_rate or e.rate) < e.rate else ""
        )
        return Match(0.9, f"the loss rose with no bad batch and no changed state{grew}")
    if e.kind == "non_finite" and e.phase == "optimizer" and not math.isfinite(e.rate):
        return Match(0.97, f"the learning rate itself is {e.rate}")
    if e.kind == "non_finite" and e.phase == "optimizer" and e.huge_state is not None and e.earlier_rate is not None:
        far = f"{e.huge_state[0]} is {e.huge_state[1]:.3g} since"
        return Match(0.95, f"the learning rate had jumped from {e.earlier_rate:.3g} to {e.rate:.3g}, and {far}")
    if e.kind != "non_finite" or e.phase in ("data", "state") or len(e.losses) < 2 or e.facts.num_reduced in (0, 1):
        return None
    # So large a loss leaves no doubt: products of such numbers overflow inside of an op, which then gives a NaN.
    enormous = e.losses[-1] > _ENORMOUS * max(1.0, min(e.losses))
    degenerate = e.facts.denominator_zero or e.facts.argument_zero or e.facts.masked_row or e.cancelled
    degenerate = degenerate or (e.is_nan and not enormous)
    if e.blew_up and not degenerate and not e.backward:
        return Match(0.965, f"the loss had risen from {min(e.losses):.3g} to {e.losses[-1]:.3g} before this step")
    return None
