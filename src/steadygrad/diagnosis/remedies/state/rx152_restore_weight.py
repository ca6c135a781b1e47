"""Restore a weight to what it was.

What it sees
    A weight that no update changed and that is not what it was after the last step; a weight that was bad before the
    step; a first bad value that was computed from weights alone, whatever the batch.

Why it hurts
    A flipped bit stays until the old value is restored.

Smallest example
    weight.copy_(last_good)
    # instead of
    weight[4, 17]  # 3e36, by a flipped bit

What to do
    Restore it from the last good snapshot or another replica.

Safety
    Exact.

References
    https://arxiv.org/abs/2102.11245
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ....records.rules import Rule
from ...interventions.state_changes import AsEarlier, Reverted, TameOutliers
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX152", "restore_weight", "Restore a weight to what it was.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    changed = {(c.kind, c.name) for c in context.evidence.changes if c.kind == "parameter" and c.out_of_range}
    bad = frozenset(name for kind, name in context.evidence.bad_before if kind == "parameter")
    if changed:
        yield Proposal(
            code=RULE.code,
            slug="restore_weight",
            change=f"{', '.join(sorted(name for _, name in changed))} as after the last step",
            make=lambda: Reverted(context.replayable, changed),
            safety="exact",
        )
    elif context.evidence.huge_state is not None:
        name = context.evidence.huge_state[0]
        yield Proposal(
            code=RULE.code,
            slug="restore_weight",
            change=f"the outlying entries of {name} set to zero",
            make=lambda: TameOutliers(name),
            safety="close",
        )
    elif context.replayable.facts.step and not context.silent and (guilty := bad or context.guilty_parameters):
        for back in context.steps_back():
            yield Proposal(
                code=RULE.code,
                slug=RULE.slug,
                change=f"{', '.join(sorted(guilty))} as {back} step{'s' * (back > 1)} before",
                make=partial(AsEarlier, context.replayable, {("parameter", name) for name in guilty}, back),
                safety="close",
                if_needed=back > 1,
            )
