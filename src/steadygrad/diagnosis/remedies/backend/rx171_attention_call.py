"""Pad the length of an attention call, or give its mask as numbers.

What it sees
    A failing step whose first bad value came out of a fused attention kernel, forward or backward.

Why it hurts
    Fused kernels work in tiles; a length that does not fill the last tile, or one form of the mask, takes a path that
    others do not.

Smallest example
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)
    # instead of
    collator = DataCollatorWithPadding(tokenizer)

What to do
    Pad batches to a multiple of 128, or pass a mask of numbers (0 where a query looks) in place of booleans.

Safety
    Close: the same function of the same positions.

References
    https://github.com/pytorch/pytorch/issues/196678
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.backend.attention import TILE, additive_mask, padded_attention
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX171", "attention_call", "Pad the length of an attention call, or give its mask as numbers.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.call != "scaled_dot_product_attention" or not context.can_operate():
        return
    yield Proposal(
        code=RULE.code,
        slug="pad_length",
        change=f"attention at a length padded to a multiple of {TILE}",
        make=context.operation(padded_attention, everywhere=True),
        safety="close",
        code_change=f"pad_to_multiple_of={TILE}",
    )
    yield Proposal(
        code=RULE.code,
        slug="additive_mask",
        change="attention with a mask of numbers in place of booleans",
        make=context.operation(additive_mask, everywhere=True),
        safety="close",
        code_change="attn_mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)",
    )
