"""A softmax met a row in which every entry is -inf.

What it sees
    softmax, log_softmax or an attention kernel with an input row of nothing but -inf.

Why it hurts
    The largest entry is subtracted first, and -inf minus -inf is NaN: for that query, and through the next layer for
    the whole sample.

Smallest example
    torch.softmax(torch.full((4,), float("-inf")), -1)  # NaN
    # fixed
    torch.softmax(torch.full((4,), torch.finfo(torch.float32).min), -1)  # 0.25 each

What to do
    Fill the mask with a finite number, pad on the right, or let padded queries attend to themselves.

Safety
    A finite fill is exact for rows that keep a key.

References
    https://github.com/unslothai/unsloth/pull/9848
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX206", "masked_softmax_row", "A softmax met a row in which every entry is -inf.")


def match(e: Evidence) -> Match | None:
    if e.op is None or not e.facts.masked_row or (e.backward and not e.discarded_forward):
        return None
    return Match(0.97, f"{e.op} over a row that is masked completely")
