"""Let the gradient pass a rounding or a choice as if it were soft.

What it sees
    Trainable parameters whose output goes through round, floor, sign or the like, or is used only to pick an index with
    argmax, argmin, topk or sort, before it reaches the loss.

Why it hurts
    The derivative of a rounding is zero wherever it exists, and an index has none.

Smallest example
    q = x + (torch.round(x) - x).detach()
    # instead of
    q = torch.round(x)

What to do
    Use the straight-through estimator, or a soft rounding or choice. A choice is tried as hard + (soft - soft.detach())
    with the softmax of the scores; what is gathered by the places of the best scores is multiplied by
    1 + soft - soft.detach().

Safety
    Behavioural: a biased gradient in place of none.

References
    https://arxiv.org/abs/1308.3432
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....records.rules import Rule
from ...interventions.blocked_gradients import PassChoice, PassPick
from ...interventions.call_arguments import CallIntervention
from ...interventions.rejoin_graph import PassComparison
from ...locate.lost_gradient import CHOOSING, COMPARING, FLAT, ORDERING, PICKING
from ...replay.replay_step import ReplayChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX163", "straight_through", "Let the gradient pass a rounding or a choice as if it were soft.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    origin = context.origin
    if context.evidence.kind != "zero_gradient" or origin is None or not origin.stack or origin.op is None:
        return
    file, _, line = origin.stack[0].rpartition(":")
    site, name, owners = (file, int(line)), origin.op, context.replayable.facts.owners

    def passing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] + (func(*args, **kwargs) - args[0]).detach()

    def make() -> ReplayChange:
        if name in COMPARING | ORDERING:
            return PassComparison(site, name, owners)
        if name in PICKING:
            return PassPick(site, name, owners)
        return CallIntervention(site, name, passing, owners) if name in FLAT else PassChoice(site, name, owners)

    if name in FLAT | CHOOSING | COMPARING | ORDERING | PICKING:
        soft = name in CHOOSING | PICKING
        change = f"the gradient passes {name} " + ("as if the choice were soft" if soft else "unchanged")
        yield Proposal(code=RULE.code, slug="straight_through", change=change, make=make)
