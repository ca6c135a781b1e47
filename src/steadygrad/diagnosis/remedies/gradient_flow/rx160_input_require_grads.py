"""Let the input of a re-entrant checkpoint require grad.

What it sees
    Trainable parameters inside a re-entrant checkpoint whose input needs no gradient.

Why it hurts
    Re-entrant checkpointing decides by its inputs whether backward will come through.

Smallest example
    model.enable_input_require_grads()
    # instead of
    checkpoint(block, x, use_reentrant=True)  # x needs no grad

What to do
    Make the embedding output require grad.

Safety
    Behavioural: more parameters learn.

References
    https://github.com/huggingface/transformers/issues/42489
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.module_changes import OpenCheckpoints
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX160", "input_require_grads", "Let the input of a re-entrant checkpoint require grad.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.cause == "no_trainable_grad" and context.evidence.kind == "zero_gradient":
        yield Proposal(
            code=RULE.code,
            slug="input_require_grads",
            change="inputs of re-entrant checkpoints require grad",
            make=lambda: OpenCheckpoints(reentrant=True),
        )
