"""All rows are mapped to the same point.

What it sees
    The loss compares outputs of a module with each other, and its gradients draw all rows together. The outputs, or
    their directions, differ between rows by less than 2 % of their size, at several steps in a row, although the inputs
    differ and the outputs differed more at the first steps. 10 % is enough where the gradients show that the loss would
    vanish if all rows were the same. Where they show this at every step from the first on, and nothing else, it is
    enough that the distances between rows are a quarter of what they were.

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
    It changes nothing: a few sums over outputs that are there anyway. Outputs of fewer than 8 units, outputs that were
    alike from the start, and outputs that are compared with targets only (all of them may be near one) are not judged.

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
SPREAD, SPREAD_DRAWN = 0.4, 0.2
"""What the outputs must have differed by at the first steps; less is enough where the loss is seen to draw all rows
together: fresh networks of several layers give outputs that are much alike."""
DRAWN = 0.1
"""What they differ by where the loss is seen to draw all rows together: a cosine of 0.99."""
_VANISHES = 1.0
"""A squared distance between outputs gives 2; a loss that tells rows apart, or compares them with targets, less."""
ALONE = 1.95
"""The loss is made of squared distances between outputs and of nothing else."""
SHRUNK, _NEARER = 0.25, 0.6
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


def distance(output: Tensor) -> float:
    """How much the rows of an output differ. Reads the device."""
    rows = output.detach().reshape(len(output), -1).float()
    return float((rows - rows.mean(0, keepdim=True)).pow(2).mean().sqrt())


def apart(rows: Tensor, centre: Tensor) -> Tensor:
    """The direction in which rows move away from their centre; along the sphere where all have one length."""
    away, lengths = rows - centre, rows.norm(dim=1, keepdim=True)
    if float(lengths.max() - lengths.min()) > 1e-3 * float(lengths.max()):
        return away
    units = torch.nn.functional.normalize(rows, dim=1)
    return away - units * (units * away).sum(1, keepdim=True)


def judge(
    module: str,
    spreads: Sequence[float],
    inputs: Sequence[float],
    shares: Sequence[float],
    distances: Sequence[float] = (),
) -> Finding | None:
    """Pure. The spread of a module's outputs, and of the inputs of the model, at steps one after another, and the part
    of the loss that goes away, to first order, as the rows become the same: 0 where no outputs are compared.
    `distances` are the spreads as they are, not relative to the size of the outputs."""
    if not spreads or min(inputs[-STEPS:]) < COLLAPSED:
        return None
    drawn = min(shares, default=0.0) >= _VANISHES
    if max(spreads[:STEPS]) < (SPREAD_DRAWN if drawn else SPREAD):
        return None
    if not _shrinks(spreads, shares, distances) and not _is_one_point(spreads, inputs, shares):
        return None
    return seen(
        RULE,
        module,
        f"the outputs of {module} differ between rows by {spreads[-1]:.2%} of their size, and by "
        f"{max(spreads[:STEPS]):.0%} at the first steps",
        spread=spreads[-1],
        at_first=max(spreads[:STEPS]),
    )


def _is_one_point(spreads: Sequence[float], inputs: Sequence[float], shares: Sequence[float]) -> bool:
    last = shares[-2 * STEPS :]
    if len(spreads) < 2 * STEPS or min(last) <= 0:
        return False
    drawn = min(shares) > 0 and min(last) >= _VANISHES
    most = min(DRAWN, 0.25 * min(inputs[-STEPS:])) if drawn else COLLAPSED
    return max(spreads[-STEPS:]) <= most


def _shrinks(spreads: Sequence[float], shares: Sequence[float], distances: Sequence[float]) -> bool:
    """Whether nothing but distances between rows was ever in the loss, and they go to zero: rows come nearer to each
    other than to zero, too, so it is no change of scale."""
    if len(distances) <= STEPS or min(shares) < ALONE:
        return False
    near = max(distances[-2:]) <= SHRUNK * max(distances[:STEPS])
    return near and max(spreads[-2:]) <= _NEARER * max(spreads[:STEPS])


_DRAWN = (0.9, 0.5, 0.1, 0.01, 0.004, 0.003, 0.002)


def SPECIMEN() -> tuple[str, Sequence[float], Sequence[float], Sequence[float]]:
    return "encoder", _DRAWN, (0.9,) * 7, (2.0,) * 7


def NEAR_MISS() -> tuple[str, Sequence[float], Sequence[float], Sequence[float]]:
    """Answers that are all alike because the targets are."""
    return "encoder", _DRAWN, (0.9,) * 7, (0.0,) * 7
