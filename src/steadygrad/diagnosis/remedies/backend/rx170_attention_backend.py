"""Compute attention with another backend.

What it sees
    A failing step whose first bad value came out of a fused attention kernel, forward or backward.

Why it hurts
    torch chooses the attention kernel by device, version, shape and mask; one of them can be wrong where the others are
    right.

Smallest example
    torch.backends.cuda.enable_cudnn_sdp(False)
    # instead of
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # with whichever backend torch prefers

What to do
    Switch the backend off that failed, or allow one that is finite. A transformers model also takes
    `attn_implementation="eager"`.

Safety
    Close: the same function with other roundings; the plain backends are slower and take more memory.

References
    https://github.com/pytorch/pytorch/issues/196678
    https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX170", "attention_backend", "Compute attention with another backend.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "attention_backend")
