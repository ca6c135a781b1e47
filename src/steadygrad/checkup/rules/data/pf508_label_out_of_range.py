"""Labels are below zero, and not -100.

What it sees
    Token labels under zero other than the ignored -100, or at and above the number of embeddings.

Why it hurts
    Cross-entropy ignores -100 alone. Any other such label is an index outside the logits: an assert on the device that
    names nothing, or garbage.

Smallest example
    labels = torch.where(mask, ids, -1); F.cross_entropy(logits, labels)
    # fixed
    labels = torch.where(mask, ids, -100); F.cross_entropy(logits, labels)

What to do
    Use -100, or say `ignore_index=` in the loss.

Safety
    A loss with its own ignore_index is fine; then ignore this code.

References
    https://github.com/pytorch/pytorch/issues/1204
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about
from ...inputs.facts import Data

RULE = Rule("PF508", "label_out_of_range", "Labels are below zero, and not -100.")


def of_data(data: Data) -> Iterator[Advice]:
    """Names the first row."""
    if data.strange_labels:
        row, label = data.strange_labels[0]
        yield about(
            RULE, Level.ERROR, f"row {row}",
            f"label {label} is neither a token nor -100 ({len(data.strange_labels)} rows with such labels)",
            help="use -100 for what shall be ignored", num_rows=len(data.strange_labels),
        )  # fmt: skip


SPECIMENS = [Data(strange_labels=((4, -1),))]
NEAR_MISSES = [Data()]
