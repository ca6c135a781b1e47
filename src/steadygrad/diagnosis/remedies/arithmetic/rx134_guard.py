"""Let a reduction over nothing give zero.

What it sees
    A mean, variance or loss over too few elements.

Why it hurts
    The count in its denominator is zero.

Smallest example
    loss = (losses * mask).sum() / mask.sum().clamp_min(1)
    # instead of
    loss = (losses * mask).sum() / mask.sum()

What to do
    Decide the value of an empty reduction, and write it down.

Safety
    Exact for every batch that has elements.

References
    https://github.com/huggingface/trl/issues/6668
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.call_arguments import guarded
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX134", "guard", "Let a reduction over nothing give zero.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.silent or not context.can_operate():
        return
    if context.cause == "empty_reduction" or context.evidence.op == "ctc_loss":
        yield Proposal(
            code=RULE.code,
            slug="guard",
            change=f"{context.call} gives zero where it has nothing to reduce",
            make=context.operation(guarded),
            safety="exact",
        )
