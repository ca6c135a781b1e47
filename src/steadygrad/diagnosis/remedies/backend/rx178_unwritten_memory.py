"""Let the step read no memory that it did not write.

What it sees
    A failing step that nothing else explains, and that is finite when rows left in a buffer are cleared, when queued
    copies or other streams are waited for, or when memory is filled as it is allocated.

Why it hurts
    What is in such memory depends on an earlier batch, on timing or on nothing at all. Weight zero times NaN is NaN.

Smallest example
    static_x.zero_(); static_x[:n].copy_(batch)
    # instead of
    static_x[:n].copy_(batch)  # a captured graph reads all rows

What to do
    Clear the rows that a short batch leaves, wait for a copy before its buffer is written again and for a stream
    before its result is read, allocate with torch.zeros.

Safety
    Exact for the rows that count.

References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX178", "unwritten_memory", "Let the step read no memory that it did not write.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "zero_tail", "wait_for_copy", "wait_for_stream", "fill_memory")
