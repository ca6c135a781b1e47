"""Answers are cut off by the maximum length.

What it sees
    Rows that fill the maximum length exactly and do not end with the end token, while others do.

Why it hurts
    The end of the answer is what is lost, with the end token. The model learns to stop in the middle, or never to stop,
    and a format that closes with a tag is never seen closed.

Smallest example
    tokenizer(prompt + answer, truncation=True, max_length=128)
    # fixed
    tokenizer(prompt + answer, truncation=True, max_length=1024)

What to do
    Raise the maximum length, shorten or drop the long rows, or cut the prompt from the left.

Safety
    Rows that happen to have just that length and no end token look the same: under 1 % it is a note.

References
    https://github.com/huggingface/trl/issues/1623
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import Data

RULE = Rule("PF502", "answer_cut_off", "Answers are cut off by the maximum length.")


def of_data(data: Data) -> Iterator[Advice]:
    """By the share of the rows that were looked at."""
    count, seen = data.statistics.num_rows_cut, data.statistics.num_rows_seen
    if count:
        share = count / seen
        yield about(
            RULE, Level.NOTE if share < 0.01 else Level.WARNING, f"rows {listed([str(row) for row in data.rows_cut])}",
            f"{count} of {seen} rows ({share:.1%}) end at the maximum length of {data.statistics.max_length} "
            "without an end token",
            help="raise the maximum length, or drop or shorten these rows", num_rows=count, share=share,
        )  # fmt: skip


SPECIMENS = [
    Data(statistics=DataStatistics(num_rows_seen=10, num_rows_cut=4, max_length=128), rows_cut=(1, 2, 3, 4)),
    Data(statistics=DataStatistics(num_rows_seen=1000, num_rows_cut=1, max_length=128), rows_cut=(1,)),
]
NEAR_MISSES = [Data(statistics=DataStatistics(num_rows_seen=10, num_rows_at_max_length=4, max_length=128))]
