"""Fill masks with a large finite number instead of -inf.

What it sees
    A softmax over a fully masked row, or log-probabilities of -inf that meet each other.

Why it hurts
    -inf minus -inf and 0 times -inf are NaN; a very low number has neither problem and the same exponential.

Smallest example
    scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    # instead of
    scores.masked_fill(~mask, float("-inf"))

What to do
    Change the fill value. A fully masked row then attends evenly: mask its loss.

Safety
    Exact for rows that keep at least one entry.

References
    https://github.com/unslothai/unsloth/pull/9848
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.call_arguments import finite_mask, on_floats
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX133", "finfo_min", "Fill masks with a large finite number instead of -inf.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    wanted = (
        context.cause == "masked_softmax_row"
        or context.evidence.intended_infinities
        or context.evidence.op == "logsumexp"
    )
    if context.silent or not context.can_operate() or not wanted or context.evidence.number is not None:
        return  # an infinity that is no mask: any finite number in its place would be made up
    line = context.origin.code_line if context.origin else None
    yield Proposal(
        code=RULE.code,
        slug="finfo_min",
        change=f"-inf in the arguments of {context.call} replaced by a finite number",
        make=context.operation(on_floats(finite_mask)),
        safety="exact",
        code_change="fill masks with torch.finfo(dtype).min in place of float('-inf')" if line else None,
    )
