"""A stable part met an input that has no answer, and gave its fallback.

What it sees
    A loss from `steadygrad.numerics` had nothing to average over (every label masked), a vector of length zero to
    normalise, a row with no token shared by teacher and student, or a group of rewards that are all alike.

Why it hurts
    One such batch is harmless: it gives zero loss and zero gradient where the plain formula gives 0/0. Many of them
    mean that the run learns from less than it seems to.

Smallest example
    masked_cross_entropy(logits, torch.full((8, 128), -100))      # 0.0; F.cross_entropy gives nan

What to do
    If it is frequent, look at the data: answers cut off by truncation, empty captions, a reward without contrast.
    `steady doctor` counts the masked labels of a data set.

Safety
    A note: nothing is skipped for it.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html
"""

from __future__ import annotations

from ...records.rules import Rule

RULE = Rule("SY503", "degenerate_input", "A stable part met an input that has no answer, and gave its fallback.")
