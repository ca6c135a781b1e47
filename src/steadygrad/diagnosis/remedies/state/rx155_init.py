"""Initialise what was never written.

What it sees
    A parameter or buffer that has been bad since before the first step; parameters that get no gradient although
    nothing cuts the graph.

Why it hurts
    Nothing the training does will ever make it finite.

Smallest example
    nn.init.normal_(weight, std=0.02)
    # instead of
    weight = nn.Parameter(torch.empty(512, 512))

What to do
    Initialise it where the module is built.

Safety
    Behavioural: other starting weights, as was meant.

References
    https://docs.pytorch.org/docs/stable/nn.init.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.state_changes import Initialise, Redraw
from ...locate.origin import ancestors
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX155", "init", "Initialise what was never written.")


def _zero_weights(context: RemedyContext) -> tuple[str, ...]:
    """Parameters without a single number that is not zero, among what the origin was made of."""
    if context.exam is None or context.exam.record is None:
        return ()
    trace, named = context.exam.trace, context.exam.named or context.exam.record
    touches = [t for r in (named, *ancestors(trace, named, limit=12)) for t in r.reads]
    names = {name for kind, name in map(trace.label, touches) if kind == "parameter"}
    context.replayable.restore()
    context.replayable.prepare()
    weights = dict(context.replayable.model.named_parameters())
    zero = {name for name in names if name in weights and bool((weights[name] == 0).all())}
    # The same layer in another block is as it is here.
    alike = {_without_numbers(name) for name in zero}
    return tuple(sorted(n for n, w in weights.items() if _without_numbers(n) in alike and bool((w == 0).all())))


def _without_numbers(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def propose(context: RemedyContext) -> Iterator[Proposal]:
    leaf = context.evidence.leaf
    if context.cause == "uninitialised" and leaf is not None:
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"bad entries of {leaf[1]} drawn small and random",
            make=lambda: Initialise(*leaf),
        )
    if context.cause == "zero_division" and (zero := _zero_weights(context)):
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"{zero[0]}, which is zero throughout, drawn anew",
            make=lambda: Redraw(zero),
        )
    elif not context.silent and context.replayable.facts.step == 0 and (guilty := context.guilty_parameters):
        # The first bad value of the first step was computed from weights alone: they start where it has no value.
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"{', '.join(sorted(guilty))} drawn anew",
            make=lambda: Redraw(guilty),
        )
    origin, names = context.origin, context.evidence.names
    if context.evidence.kind == "zero_gradient" and names and origin is not None and origin.source is None:
        # Nothing cuts the graph, so the values themselves pass no gradient on: two factors that both start at zero,
        # units that no input wakes.
        yield Proposal(
            code=RULE.code,
            slug="init",
            change=f"{names[0]}{' and others' if len(names) > 1 else ''} drawn anew",
            make=lambda: Redraw(names),
        )
