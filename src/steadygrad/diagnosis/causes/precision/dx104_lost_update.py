"""The update is smaller than half a unit in the last place: the weight never moves.

What it sees
    A parameter with a gradient and a learning rate that has not changed a single bit in several steps.

Why it hurts
    bfloat16 has 8 bits: at 1.0 the next number is 1.0078. An update of 1e-3 is rounded away, every time.

Smallest example
    w = torch.ones(1, dtype=torch.bfloat16); w -= 1e-3  # still 1
    # fixed
    w = torch.ones(1, dtype=torch.float32); w -= 1e-3  # 0.999

What to do
    Keep a float32 master copy, raise the learning rate, or round stochastically.

Safety
    float32 weights cost memory and change nothing else.

References
    https://arxiv.org/abs/2010.06192
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match, listed

RULE = Rule("DX104", "lost_update", "The update is smaller than half a unit in the last place: the weight never moves.")


def match(e: Evidence) -> Match | None:
    if e.kind == "written_unmoved":
        return Match(0.93, f"{listed(e.names)}: kept in half precision, written in every step, and never changed")
    if e.kind != "unmoved":
        return None
    return Match(0.93, f"{listed(e.names)}: gradients at a rate of {e.rate:.3g}, and never changed a bit")
