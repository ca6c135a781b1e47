"""Restore buffers to what they were.

What it sees
    Running statistics that a bad batch, or a checkpoint, has written bad values into.

Why it hurts
    Training does not look at them, evaluation does.

Smallest example
    for name, buffer in model.named_buffers(): buffer.copy_(saved[name])
    # instead of
    if bad: continue  # and the running statistics keep the bad batch

What to do
    Restore buffers whenever a batch is skipped.

Safety
    Exact.

References
    https://github.com/pytorch/pytorch/issues/1206
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ....records.rules import Rule
from ...interventions.batch_changes import TrueSkip
from ...interventions.state_changes import AsEarlier, Reverted
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX153", "restore_buffers", "Restore buffers to what they were.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    changed = {(c.kind, c.name) for c in context.evidence.changes if c.kind == "buffer" and c.out_of_range}
    if changed:
        yield Proposal(
            code=RULE.code,
            slug="restore_buffers",
            change="buffers as after the last step",
            make=lambda: Reverted(context.replayable, changed),
            safety="exact",
        )
    elif (
        context.exam is not None
        and any(kind == "buffer" for kind, _ in context.exam.seen.bad_after)
        and not context.silent
    ):
        yield Proposal(
            code=RULE.code,
            slug="restore_buffers",
            change="the batch skipped, and the buffers restored to before it",
            make=TrueSkip,
            safety="exact",
        )
    leaf = (context.evidence.leaf,) if context.evidence.leaf is not None else ()
    bad = {key for key in (*context.evidence.bad_before, *leaf) if key[0] == "buffer"}
    if bad and not changed and context.replayable.facts.step and not context.silent:
        for back in context.steps_back():
            yield Proposal(
                code=RULE.code,
                slug=RULE.slug,
                change=f"{', '.join(sorted(name for _, name in bad))} as {back} step{'s' * (back > 1)} before",
                make=partial(AsEarlier, context.replayable, bad, back),
                safety="close",
                if_needed=True,
            )
