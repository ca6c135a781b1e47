"""Compute float32 products in float32.

What it sees
    A failing step with float32 products while TF32 or bfloat16 is allowed for them.

Why it hurts
    TF32 keeps 10 bits of each factor: a difference of two close products can lose all its digits, or its sign.

Smallest example
    torch.set_float32_matmul_precision("highest")
    # instead of
    torch.set_float32_matmul_precision("high")

What to do
    Switch TF32 off for the run, or only around the lines that subtract.

Safety
    Close: less rounding, slower products.

References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX172", "fp32_matmul", "Compute float32 products in float32.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "fp32_matmul")
