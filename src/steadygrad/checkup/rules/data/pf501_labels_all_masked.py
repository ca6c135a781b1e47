"""Rows whose labels are all -100.

What it sees
    Rows of a data set that teach nothing, because every label is the ignored one.

Why it hurts
    The mean over no tokens is 0/0: the loss is NaN for a batch of such rows. The usual causes are a prompt that fills
    the whole length, and a response template that the tokenizer splits differently.

Smallest example
    {"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}
    # fixed
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}

What to do
    Drop the rows or raise the length, and print one row's tokens beside its labels.

Safety
    An error where half the rows or more are concerned, a warning from the first.

References
    https://github.com/OpenRLHF/OpenRLHF/pull/583
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import Data

RULE = Rule("PF501", "labels_all_masked", "Rows whose labels are all -100.")


def of_data(data: Data) -> Iterator[Advice]:
    """By the share of the rows that were looked at."""
    count, seen = data.statistics.num_rows_taught_nothing, data.statistics.num_rows_seen
    if count:
        yield about(
            RULE, Level.ERROR if count * 2 >= seen else Level.WARNING,
            f"rows {listed([str(row) for row in data.rows_taught_nothing])}",
            f"{count} of {seen} rows have no label to learn from: all are -100",
            help="drop them, raise the maximum length, or fix the masking of the prompt",
            num_rows=count, share=count / seen,
        )  # fmt: skip


SPECIMENS = [
    Data(statistics=DataStatistics(num_rows_seen=10, num_rows_taught_nothing=1), rows_taught_nothing=(3,)),
    Data(statistics=DataStatistics(num_rows_seen=10, num_rows_taught_nothing=10), rows_taught_nothing=(0, 1, 2)),
]
NEAR_MISSES = [Data(statistics=DataStatistics(num_rows_seen=10, num_taught_tokens=1))]
