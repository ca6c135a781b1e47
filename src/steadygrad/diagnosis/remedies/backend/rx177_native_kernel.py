"""Compute the op without cuDNN or oneDNN.

What it sees
    A bad value out of an op that a library computes, with finite inputs and a result that float64 shows to be small.

Why it hurts
    The library's kernel is wrong for this shape, layout or value.

Smallest example
    with torch.backends.cudnn.flags(enabled=False):
        out = conv(x)
    # instead of
    out = conv(x)

What to do
    Switch the library off around the op, report the bug, update the library.

Safety
    Close: the same function with other roundings, slower.

References
    https://docs.pytorch.org/docs/stable/backends.html#torch-backends-cudnn
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX177", "native_kernel", "Compute the op without cuDNN or oneDNN.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "native_kernel")
