"""Padding counts in the loss.

What it sees
    A mask or a vector of lengths in the batch, or a token that only fills the ends of rows, marks positions as padding;
    the loss depends on the predictions there, and they are 30 % or more of all it depends on. In images it is a table
    of heights and widths, outside of which all pixels have one value that hardly any pixel inside has.

Why it hurts
    The model is trained to predict padding. The mean loss falls because padding is easy, and the tokens that matter
    weigh less the more their batch was padded.

Smallest example
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    # fixed
    loss = F.cross_entropy(logits.flatten(0, 1), targets.masked_fill(mask == 0, -100).flatten())

What to do
    Set the labels of padding to the ignored value (-100), or multiply the loss by the mask before it is averaged.

Safety
    It changes nothing. Padding that the loss leaves out, however that is done, is not reported: what counts is read off
    the gradient of the loss.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

import torch

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule
from ..batch_facts import BatchFacts, PaddingFacts

RULE = Rule("SY453", "padding_in_loss", "Padding counts in the loss.")
SHARE = 0.3


def judge(facts: BatchFacts) -> Finding | None:
    """Pure."""
    for each in facts.paddings:
        counted = int(each.counted.sum())
        share = int((each.counted & each.padding).sum()) / counted if counted else 0.0
        if share >= SHARE:
            return seen(
                RULE,
                each.name,
                f"{share:.0%} of the predictions that the loss counts are padding by {each.name}",
                share=share,
                padding=float(each.padding.float().mean()),
            )
    return None


def _padded(counted: torch.Tensor) -> tuple[BatchFacts]:
    padding = torch.arange(8)[None] >= torch.tensor([3, 4, 5, 8])[:, None]
    return (BatchFacts(rows=4, paddings=[PaddingFacts(padding=padding, counted=counted, name="mask")]),)


def SPECIMEN() -> tuple[BatchFacts]:
    return _padded(torch.ones(4, 8, dtype=torch.bool))


def NEAR_MISS() -> tuple[BatchFacts]:
    """The loss leaves padding out."""
    return _padded(torch.arange(8)[None] < torch.tensor([3, 4, 5, 8])[:, None])
