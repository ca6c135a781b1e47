"""Let the learning rate grow from nothing over the first steps.

What it sees
    A loss that climbed away within the first steps, with the full learning rate from the start.

Why it hurts
    Adam's second moments are a guess at first, and fresh weights lie on steep ground: a full step there throws the
    model somewhere it may not come back from.

Smallest example
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=500)
    # instead of
    torch.optim.AdamW(model.parameters(), lr=1e-3)  # from the first step on

What to do
    Warm up over a few hundred steps; here it is tried over the few that are kept, from the very first.

Safety
    Behavioural: training takes another path.

References
    https://arxiv.org/abs/1706.03762
    https://arxiv.org/abs/2002.04745
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ....records.rules import Rule
from ...interventions.optimizer_changes import Warmup
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX143", "warmup", "Let the learning rate grow from nothing over the first steps.")
EARLY = 32
"""Past so many steps a run has long been warm, and what went wrong is not the missing warm-up."""


def propose(context: RemedyContext) -> Iterator[Proposal]:
    step = context.replayable.facts.step
    spike = context.evidence.kind == "spike" and context.evidence.phase == "optimizer"
    if (context.cause == "lr_divergence" or spike) and step <= EARLY:
        yield Proposal(
            code=RULE.code,
            slug="warmup",
            change=f"learning rate grows to its full size over the first {step + 3} steps",
            make=partial(Warmup, step + 3),
            from_start=True,
        )
