"""The optimizer's eps rounds to zero in the parameter's dtype.

What it sees
    A division inside the optimizer step whose denominator is exactly zero: sqrt(v) + eps with an eps the dtype
    cannot hold.

Why it hurts
    0/0 for an entry that had no gradient yet, m/0 for one whose square vanished. The weight becomes NaN from a
    finite gradient.

Smallest example
    torch.optim.Adam(model.half().parameters(), eps=1e-8)  # 1e-8 is 0 in float16, 1e-50 is 0 in float32
    # fixed
    torch.optim.Adam(model.float().parameters(), eps=1e-8)

What to do
    Raise eps (1e-4 in float16), or keep parameters and moments in float32.

Safety
    A larger eps damps entries with tiny gradients. float32 state is the faithful repair.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX103", "optimizer_eps_underflow", "The optimizer's eps rounds to zero in the parameter's dtype.")


def match(e: Evidence) -> Match | None:
    if e.phase != "optimizer" or e.op not in ("addcdiv", "div", "reciprocal", "fused_adam", "fused_adamw", "rsqrt"):
        return None
    if e.dtype not in ("float16", "") and e.lost_eps is None:
        return None  # this type holds the eps: without one it is a plain division by zero
    if e.facts.denominator_zero or (e.inputs and e.inputs[-1].num_zero > 0):
        given = f": eps {e.lost_eps:g} is zero there" if e.lost_eps is not None else ""
        return Match(0.95, f"{e.op} in the optimizer divided by zero in {e.dtype}{given}")
    return None
