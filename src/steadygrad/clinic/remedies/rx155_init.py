"""Initialise what was never written.

What it sees
    A parameter or buffer that has been bad since before the first step; parameters that get no gradient although
    nothing cuts the graph.

Why it hurts
    Nothing the training does will ever make it sound.

Smallest example
    nn.init.normal_(weight, std=0.02)

What to do
    Initialise it where the module is built.

Safety
    Behavioural: other starting weights, as was meant.

References
    https://docs.pytorch.org/docs/stable/nn.init.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..surgery.state import Initialise, Redraw
from ..ward import Proposal, Ward

RULE = Rule("RX155", "init", "Initialise what was never written.")


def propose(ward: Ward) -> Iterator[Proposal]:
    leaf = ward.evidence.leaf
    if ward.cause == "uninitialised" and leaf is not None:
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"bad entries of {leaf[1]} drawn small and random",
            make=lambda: Initialise(*leaf),
        )
    origin, names = ward.origin, ward.evidence.names
    if ward.evidence.kind == "zero_gradient" and names and origin is not None and origin.source is None:
        # Nothing cuts the graph, so the values themselves pass no gradient on: two factors that both start at zero,
        # units that no input wakes.
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"{names[0]}{' and others' if len(names) > 1 else ''} drawn anew",
            make=lambda: Redraw(names),
        )
