"""Rows of a batch influence each other's predictions.

What it sees
    In evaluation mode, replacing one row of the inputs changes the predictions of other rows, and the order of the rows
    matters, or an attention layer takes the rows for time steps.

Why it hurts
    A prediction depends on which rows happen to be in its batch: the model can read answers from its neighbours, and
    alone, as it will be used, it behaves differently. The usual causes are a recurrent or attention layer that takes
    the rows for time steps (`batch_first`), and a wrong view or transpose.

Smallest example
    out, _ = torch.nn.LSTM(8, 16)(x)   # x: (rows, time, 8)
    # fixed
    out, _ = torch.nn.LSTM(8, 16, batch_first=True)(x)

What to do
    Check which dimension each layer takes for the rows.

Safety
    It changes nothing: the model's call is made again without gradients in evaluation mode, so batch norm uses its
    running statistics, and all state is restored. Statistics of the batch that are taken by hand are not reported; nor
    are graphs, similarity matrices and losses over pairs of rows: inputs, buffers or outputs that hold rows times rows
    are not judged.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

from __future__ import annotations

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule
from ..batch_facts import BatchFacts

RULE = Rule("SY452", "rows_influence_each_other", "Rows of a batch influence each other's predictions.")
CHANGED = 0.25


def judge(facts: BatchFacts) -> Finding | None:
    """Pure."""
    share = facts.others_changed
    if share is None or share < CHANGED:
        return None
    return seen(
        RULE,
        "rows",
        f"replacing one row of the batch changes the predictions of {share:.0%} of the other rows",
        share=share,
        rows=facts.rows,
    )


def SPECIMEN() -> tuple[BatchFacts]:
    return (BatchFacts(rows=8, others_changed=1.0),)


def NEAR_MISS() -> tuple[BatchFacts]:
    """Each row is predicted from itself alone."""
    return (BatchFacts(rows=8, others_changed=0.0),)
