"""Leave this batch out.

What it sees
    A step whose loss or gradient is not finite.

Why it hurts
    The update would write the bad value into every weight.

Smallest example
    if not torch.isfinite(loss): continue
    # instead of
    optimizer.step()  # whatever the loss is

What to do
    Skip the update and go on. Works only if the bad value comes with the batch and leaves with it.

Safety
    Behavioural: one batch less.

References
    https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.batch_changes import SkipBatch
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX110", "skip_batch", "Leave this batch out.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.replayable.facts.dynamic_scale and context.evidence.symptom == "nan_grad":
        return  # the loss scaler skips such a batch already, and here is the incident
    if not context.silent or context.evidence.kind in ("spike", "neutralised"):
        yield Proposal(
            code=RULE.code,
            slug="skip_batch",
            change="no update for a batch whose loss or gradient is not finite",
            make=SkipBatch,
        )
