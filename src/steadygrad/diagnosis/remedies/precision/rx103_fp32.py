"""Compute the whole step in float32.

What it sees
    Half precision anywhere in a step that failed.

Why it hurts
    float32 is the arithmetic most recipes were tuned in; it costs memory and speed.

Smallest example
    model.float()  # and no autocast
    # instead of
    model.half()

What to do
    Use it to find out whether precision is the cause at all; then narrow it down with RX102.

Safety
    Close: the same program with less rounding.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ....records.rules import Rule
from ...interventions.precision_changes import Precision
from ..remedy_context import Proposal, RemedyContext
from .rx101_bf16 import PRECISION_CAUSES

RULE = Rule("RX103", "fp32", "Compute the whole step in float32.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if context.half and context.cause in PRECISION_CAUSES:
        yield Proposal(
            code=RULE.code,
            slug="fp32",
            change="float32 in place of half precision",
            make=lambda: Precision(torch.float32),
            safety="close",
        )
    elif context.cause == "lost_update":
        # Far from zero float32 is coarse too: at six million the next number is half a unit away.
        yield Proposal(
            code=RULE.code,
            slug="fp64",
            change="float64 in place of float32",
            make=lambda: Precision(torch.float64),
            safety="close",
        )
