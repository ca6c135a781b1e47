"""Keep the optimizer state as it was before it was rounded.

What it sees
    Optimizer moments that were changed between two steps, as a checkpoint in half precision does.

Why it hurts
    A second moment of 1e-12 is zero in float16, and the next update divides by its root.

Smallest example
    torch.save(optimizer.state_dict(), path)  # in float32, as it is
    # instead of
    torch.save({k: v.half() for k, v in moments.items()}, path)

What to do
    Store and load moments in float32.

Safety
    Exact.

References
    https://github.com/ultralytics/ultralytics/issues/17282
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ....records.rules import Rule
from ...interventions.precision_changes import Precision
from ...interventions.state_changes import Reverted
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX106", "fp32_state", "Keep the optimizer state as it was before it was rounded.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.evidence.kind == "state_underflow":
        yield Proposal(
            code=RULE.code,
            slug="fp32_state",
            change="optimizer state kept in float32",
            make=lambda: Precision(torch.float32),
            safety="close",
            code_change="state = torch.zeros_like(parameter, dtype=torch.float32)",
        )
    changed = {(c.kind, c.name) for c in context.evidence.changes if c.kind == "optimizer"}
    if changed:
        yield Proposal(
            code=RULE.code,
            slug="fp32_state",
            change="optimizer state as it was before it was loaded",
            make=lambda: Reverted(context.replayable, changed),
            safety="exact",
        )
