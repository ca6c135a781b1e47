"""Update without the fused optimizer kernel.

What it sees
    A failing update of an optimizer that was made with fused=True.

Why it hurts
    The fused kernel is other code than the documented formula.

Smallest example
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=False)
    # instead of
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

What to do
    Make the optimizer with `fused=False`, or update torch.

Safety
    Close: the same formula with other roundings, somewhat slower.

References
    https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX176", "unfused_optimizer", "Update without the fused optimizer kernel.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "unfused_optimizer")
