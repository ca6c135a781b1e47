"""A value that the forward discarded leaked into backward.

What it sees
    A NaN first computed in backward from a gradient of exactly zero, at a place that where, a mask or nan_to_num had
    thrown away.

Why it hurts
    where stops the value, not the derivative: 0 times inf is NaN.

Smallest example
    x = torch.zeros(1, requires_grad=True); torch.where(x > 0, torch.log(x), 0.0).sum().backward(); x.grad  # NaN
    # fixed
    torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0.0).sum().backward()  # 0

What to do
    Mask the argument before the function as well (the double where).

Safety
    Exact: selected values and their gradients are unchanged.

References
    https://github.com/pytorch/pytorch/issues/108618
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX303", "where_grad_trap", "A value that the forward discarded leaked into backward.")

# Minus infinity is what these say of a probability of zero: it flows on and is not discarded.
LEGAL_INFINITIES = frozenset({"logsumexp", "logcumsumexp", "logaddexp", "logaddexp2", "angle"})


def match(e: Evidence) -> Match | None:
    if not e.backward or e.kind != "non_finite" or e.op in LEGAL_INFINITIES:
        return None
    if e.facts.incoming_zero and e.facts.zeroed_by_mask:
        return Match(0.95, f"the gradient coming into {e.op} is exactly zero there: its result was masked away")
    if e.discarded_forward:
        sure = 0.8 if e.saturated else 0.94
        return Match(sure, f"{e.op} was not finite in forward either, yet the loss is: its result was discarded")
    return None
