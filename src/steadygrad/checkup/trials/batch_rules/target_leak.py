"""Predictions can see what they have to predict.

What it sees
    The target of each output is a later token of the input (the next one), and replacing that token in the input
    changes the prediction: a causal mask is missing or is ignored, or a convolution is padded on both sides.

Why it hurts
    The model learns to copy the answer. The training loss falls far below what can be known, and generation, where the
    answer is not there yet, is useless.

Smallest example
    y = F.scaled_dot_product_attention(q, k, v)
    # fixed
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

What to do
    Pass the causal mask down to the attention that is really used, or pad a convolution on the left alone.

Safety
    It changes nothing: the model's call is made again a few times without gradients, with one token replaced by another
    one of the batch, and all state is restored. Masked language models, whose targets are not in the input, and
    auto-encoders, whose target is the token of the same position, are not reported.

References
    https://github.com/keras-team/keras/issues/23038
"""

from __future__ import annotations

import torch

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule
from ..batch_facts import BatchFacts, SequenceFacts

RULE = Rule("SY450", "target_leak", "Predictions can see what they have to predict.")
SEEN = 0.5


def judge(facts: BatchFacts) -> Finding | None:
    """Pure."""
    for each in facts.sequences:
        shift = each.shift()
        if shift is None or shift < 1:
            continue
        share = each.seen_targets(shift)
        if share >= SEEN:
            return seen(
                RULE,
                "predictions",
                f"the target of each prediction is the token {shift} after it, and replacing that token in the input "
                f"changes the prediction ({share:.0%} of those tried)",
                shift=shift,
                share=share,
            )
    return None


def sequence(shift: int, lookahead: int | None) -> BatchFacts:
    """Facts of a model that sees so many tokens ahead (None: all of them), for specimens and tests."""
    ids = torch.arange(48).reshape(4, 12)
    targets = torch.full((4, 12), -1)
    first, last = max(0, -shift), min(12, 12 - shift)
    targets[:, first:last] = ids[:, first + shift : last + shift]
    changed = {}
    for place in (4, 7, 9):
        changed[place] = torch.zeros(4, 12, dtype=torch.bool)
        changed[place][:, 0 if lookahead is None else place - lookahead :] = True
    facts = SequenceFacts(ids=ids, counted=targets >= 0, targets=targets, changed=changed)
    return BatchFacts(rows=4, sequences=[facts])


def SPECIMEN() -> tuple[BatchFacts]:
    return (sequence(shift=1, lookahead=None),)


def NEAR_MISS() -> tuple[BatchFacts]:
    """A causal model: later tokens change later predictions alone."""
    return (sequence(shift=1, lookahead=0),)
