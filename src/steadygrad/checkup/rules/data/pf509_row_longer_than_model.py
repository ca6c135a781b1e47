"""Rows are longer than the model's positions.

What it sees
    Rows with more tokens than `max_position_embeddings`.

Why it hurts
    Learned positions end there: an index outside the table is an assert on the device. Rotary positions go on, into a
    range the model never saw, and the loss jumps.

Smallest example
    AutoModel.from_pretrained("gpt2")(input_ids=torch.zeros(1, 2000, dtype=torch.long))
    # fixed
    AutoModel.from_pretrained("gpt2")(input_ids=torch.zeros(1, 1024, dtype=torch.long))

What to do
    Truncate or split the rows at the model's length.

Safety
    Models with extended positions state the larger number themselves.

References
    https://github.com/huggingface/transformers/issues/14384
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import Data

RULE = Rule("PF509", "row_longer_than_model", "Rows are longer than the model's positions.")


def of_data(data: Data) -> Iterator[Advice]:
    """Needs the model beside the data."""
    if data.rows_too_long and data.max_positions is not None:
        count = len(data.rows_too_long)
        yield about(
            RULE, Level.ERROR, f"rows {listed([str(row) for row in data.rows_too_long])}",
            f"{count} rows are longer than the model's {data.max_positions} positions",
            help="truncate or split them", num_rows=count,
        )  # fmt: skip


SPECIMENS = [Data(statistics=DataStatistics(num_rows_seen=2), rows_too_long=(1,), max_positions=1024)]
NEAR_MISSES = [Data(statistics=DataStatistics(num_rows_seen=2), max_positions=1024)]
