"""The gradient was neutralised, and momentum or weight decay moved the weights anyway.

What it sees
    A step whose gradient was bad, reached the optimizer as zeros, and still changed the weights.

Why it hurts
    Zeroing a gradient is not skipping: Adam goes on along its old direction and decays its moments, for as long as
    it lasts.

Smallest example
    for p in model.parameters(): torch.nan_to_num_(p.grad, nan=0.0)
    optimizer.step()  # moves
    # fixed
    if not all(torch.isfinite(p.grad).all() for p in model.parameters()): continue  # no step() for this batch

What to do
    Do not call step() for such a batch.

Safety
    Exact: as if the batch had never come.

References
    https://github.com/huggingface/accelerate/issues/4242
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule(
    "DX502", "stale_momentum", "The gradient was neutralised, and momentum or weight decay moved the weights anyway."
)


def match(e: Evidence) -> Match | None:
    if e.kind != "neutralised":
        return None
    return Match(0.94, f"{len(e.names)} gradients were bad, were zeroed, and the weights moved")
