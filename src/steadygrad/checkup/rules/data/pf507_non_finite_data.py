"""The data hold NaN or infinite values.

What it sees
    A float column with a value that is not finite.

Why it hurts
    It goes straight into the loss. One bad row in a million is met once an epoch, at a step that cannot be predicted.

Smallest example
    {"features": [0.1, nan, 0.3], "label": 1}
    # fixed
    {"features": [0.1, 0.2, 0.3], "label": 1}

What to do
    Drop or repair the rows at the source; a missing value is not a number to train on.

Safety
    Certain: read from the rows that were looked at.

References
    https://github.com/keras-team/keras/issues/6921
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, DataStatistics, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import Data

RULE = Rule("PF507", "non_finite_data", "The data hold NaN or infinite values.")


def of_data(data: Data) -> Iterator[Advice]:
    """Names rows and columns."""
    if data.rows_non_finite:
        places = [f"{row} ({column})" for row, column in data.rows_non_finite]
        yield about(
            RULE, Level.ERROR, f"rows {listed(places)}",
            f"{len({row for row, _ in data.rows_non_finite})} rows hold NaN or infinite values",
            help="drop or repair them at the source", num_rows=len(places),
        )  # fmt: skip


SPECIMENS = [Data(statistics=DataStatistics(num_rows_seen=3), rows_non_finite=((1, "features"),))]
NEAR_MISSES = [Data(statistics=DataStatistics(num_rows_seen=3))]
