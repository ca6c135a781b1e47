"""A parameter or buffer was read before it was ever written.

What it sees
    A weight or buffer that was bad at the very first step, or a tensor made by torch.empty and read as it was.

Why it hurts
    Fresh memory holds whatever was there: often zeros in a test, NaN in production.

Smallest example
    nn.Parameter(torch.empty(512, 512))  # and reset_parameters() is not called
    # fixed
    weight = nn.Parameter(torch.empty(512, 512)); nn.init.normal_(weight, std=0.02)

What to do
    Initialise it.

Safety
    Behavioural: the model starts from other weights, as was meant.

References
    https://docs.pytorch.org/docs/stable/generated/torch.empty.html
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX402", "uninitialised", "A parameter or buffer was read before it was ever written.")


def match(e: Evidence) -> Match | None:
    if e.op in ("empty", "empty_like", "new_empty", "empty_strided", "resize"):
        return Match(0.95, f"memory from {e.op} was read before anything was written to it")
    if e.proved_by == "fill_memory":
        return Match(0.93, "the step is finite when memory is filled as it is allocated, and not otherwise")
    huge = e.huge_state is not None and e.bad_since_start
    if e.phase == "state" and huge and e.huge_state is not None:
        return Match(0.96, f"{e.huge_state[0]} has held {e.huge_state[1]:.3g} since before the first step")
    if e.phase == "state" and e.bad_since_start and e.leaf is not None and e.leaf[0] in ("parameter", "buffer"):
        return Match(0.96, f"{e.leaf[1]} has been bad since before the first step")
    return None
