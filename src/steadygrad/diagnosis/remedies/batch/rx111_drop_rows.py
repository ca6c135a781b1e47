"""Leave the rows that fail out of this batch.

What it sees
    Rows that make the step fail by themselves, while the others are finite.

Why it hurts
    One bad sample costs the whole batch otherwise.

Smallest example
    batch = {key: value[good] for key, value in batch.items()}
    # instead of
    loss_fn(model, batch).backward()  # with the bad rows in it

What to do
    Drop them now, and repair or remove the samples.

Safety
    Exact for the other rows, unless rows are coupled.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.batch_changes import DropRows
from ...locate.bad_rows import num_rows
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX111", "drop_rows", "Leave the rows that fail out of this batch.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    rows = context.rows.rows
    if (
        (context.silent and context.evidence.phase != "data")
        or not rows
        or context.rows.packed
        or context.replayable.facts.select_rows is None
        or not context.replayable.batches
    ):
        return
    if len(rows) < num_rows(context.replayable.batches[-1], context.replayable.facts.select_rows):
        yield Proposal(
            code=RULE.code,
            slug="drop_rows",
            change=f"rows {', '.join(map(str, rows))} left out",
            make=lambda: DropRows(rows),
            lasting=False,
        )
