"""All rows are mapped to the same point.

What it sees
    The outputs of a module, or their directions, differ between rows by less than 2 % of their size, at several steps
    in a row, although the inputs differ and the outputs differed more at the first steps.

Why it hurts
    The representation says nothing about its input. In self-supervised training the loss looks perfect: predicting a
    constant from a constant is easy.

Smallest example
    loss = (model(view_one) - model(view_two)).pow(2).mean()
    # fixed
    loss = (predictor(model(view_one)) - model(view_two).detach()).pow(2).mean()

What to do
    Add what keeps representations apart: negatives, a stopped gradient with a predictor, or a term for the variance.

Safety
    It changes nothing: two sums over an output that is there anyway. Outputs of fewer than 8 units, and outputs that
    were alike from the start, are not judged.

References
    https://arxiv.org/abs/2011.10566
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule

RULE = Rule("SY454", "representation_collapse", "All rows are mapped to the same point.")
COLLAPSED = 0.02
SPREAD = 0.4
"""What the outputs must have differed by at the first steps."""
STEPS = 3
MIN_WIDTH, MIN_ROWS = 8, 4


def spread(output: Tensor) -> Tensor | None:
    """How much the rows of an output differ, relative to their size, as a tensor on its device; None where it is not
    judged: too few rows or units, or no rows at all."""
    if output.dim() < 2 or len(output) < MIN_ROWS or not output.is_floating_point():
        return None
    rows = output.detach().reshape(len(output), -1).float()
    if rows.shape[1] < MIN_WIDTH:
        return None
    # A loss of angles lets rows of one direction have any length, so directions are compared by themselves.
    return torch.minimum(_relative(rows), _relative(torch.nn.functional.normalize(rows, dim=1)))


def _relative(rows: Tensor) -> Tensor:
    size = rows.pow(2).mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return (rows - rows.mean(0, keepdim=True)).pow(2).mean().sqrt() / size


def judge(module: str, spreads: Sequence[float], inputs: Sequence[float]) -> Finding | None:
    """Pure. The spread of a module's outputs, and of the inputs of the model, at steps one after another."""
    if len(spreads) < 2 * STEPS or len(inputs) < STEPS:
        return None
    if max(spreads[:STEPS]) < SPREAD or max(spreads[-STEPS:]) > COLLAPSED or min(inputs[-STEPS:]) < COLLAPSED:
        return None
    return seen(
        RULE,
        module,
        f"the outputs of {module} differ between rows by {spreads[-1]:.2%} of their size, and by "
        f"{max(spreads[:STEPS]):.0%} at the first steps",
        spread=spreads[-1],
        at_first=max(spreads[:STEPS]),
    )


def SPECIMEN() -> tuple[str, Sequence[float], Sequence[float]]:
    return "encoder", (0.9, 0.5, 0.1, 0.01, 0.004, 0.003, 0.002), (0.9,) * 7


def NEAR_MISS() -> tuple[str, Sequence[float], Sequence[float]]:
    """The same with inputs that are all alike."""
    return "encoder", (0.9, 0.5, 0.1, 0.01, 0.004, 0.003, 0.002), (0.9, 0.5, 0.1, 0.01, 0.004, 0.003, 0.002)
