"""Rows whose attention mask is empty.

What it sees
    Rows with no token to attend to: the mask is all zeros, or the row has no tokens.

Why it hurts
    Softmax over a row that is masked everywhere is NaN, or depends on which attention kernel was chosen. One such row
    turns the gradient of the whole batch NaN.

Smallest example
    {"input_ids": [0, 0], "attention_mask": [0, 0]}
    # fixed
    {"input_ids": [5, 0], "attention_mask": [1, 0]}

What to do
    Drop rows that are empty after cleaning, before they are padded.

Safety
    Certain: counted in the rows.

References
    https://github.com/pytorch/pytorch/issues/41508
    https://github.com/huggingface/transformers/issues/38690
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import Data

RULE = Rule("PF506", "empty_attention_mask", "Rows whose attention mask is empty.")


def of_data(data: Data) -> Iterator[Advice]:
    """From the first row."""
    if data.rows_empty_mask:
        count = len(data.rows_empty_mask)
        yield about(
            RULE, Level.ERROR, f"rows {listed([str(row) for row in data.rows_empty_mask])}",
            f"{count} rows have nothing to attend to", help="drop empty rows before padding", num_rows=count,
        )  # fmt: skip


SPECIMENS = [Data(statistics=DataStatistics(num_rows_seen=3), rows_empty_mask=(1,))]
NEAR_MISSES = [Data(statistics=DataStatistics(num_rows_seen=3))]
