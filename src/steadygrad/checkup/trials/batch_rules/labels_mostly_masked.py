"""Most rows of a batch have no label left.

What it sees
    In the labels of the batch, half of the rows or more are the ignored value (-100) everywhere, and the loss depends
    on no prediction of these rows. Where a row has one label, it is a negative number, and no other row's prediction
    depends on the row.

Why it hurts
    They cost a full forward and backward and teach nothing. The usual cause is a prompt that is longer than the maximum
    length, or a template that the masking of prompts does not recognise.

Smallest example
    labels[:, :prompt_length] = -100   # prompt_length >= labels.shape[1] for most rows
    # fixed
    ids, labels = ids[-max_length:], labels[-max_length:]   # cut the prompt, keep the answer

What to do
    Look at a decoded row with its labels. `sg.doctor(dataset=...)` counts such rows in the whole data set (PF501).

Safety
    It changes nothing. Rows whose gradient is zero for other reasons (an advantage of zero) are not reported: the
    labels themselves must be ignored.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule
from ..batch_facts import BatchFacts

RULE = Rule("SY455", "labels_mostly_masked", "Most rows of a batch have no label left.")
MASKED = 0.5


def judge(facts: BatchFacts) -> Finding | None:
    """Pure."""
    share = facts.unlabelled
    if share is None or share < MASKED or facts.rows < 2:
        return None
    return seen(
        RULE,
        "labels",
        f"{share:.0%} of the {facts.rows} rows of this batch have no label: every one is the ignored value",
        share=share,
        rows=facts.rows,
    )


def SPECIMEN() -> tuple[BatchFacts]:
    return (BatchFacts(rows=8, unlabelled=0.75),)


def NEAR_MISS() -> tuple[BatchFacts]:
    """One row of eight was cut off."""
    return (BatchFacts(rows=8, unlabelled=0.125),)
