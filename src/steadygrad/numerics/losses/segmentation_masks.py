"""Losses for segmentation masks: Dice and binary cross-entropy from logits, fine with empty masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..masked_means import broadcast_mask, masked_mean, reduction_dtype
from ..published_findings import Board


def dice_loss(
    logits: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    smooth: float = 1.0,
    dims: tuple[int, ...] = (-2, -1),
    report_to: Board | None = None,
) -> Tensor:
    """The mean over pictures of 1 - (2 sum(p t) + smooth) / (sum(p) + sum(t) + smooth), with p = sigmoid(logits).

    Taken in float32: in float16 the sum over a picture overflows, and a smooth of 1e-8 is zero, so an empty mask gives
    0/0. With `smooth=0` a picture that has neither target nor prediction has loss zero. Does not sync with the host.

    Args:
        logits, target: pictures along `dims`; the target is bool or between 0 and 1.
        mask: of their shape, bool or weights: pixels that count. A picture with none is left out of the mean.
        smooth: added above and below; with 0 a picture without target and prediction has loss zero.
        dims: the axes of a picture.
        report_to: a Board instead of the one of this process.

    Returns:
        A float32 scalar.

    Example:
        >>> empty = torch.full((1, 2, 2), -50.0)
        >>> round(float(sg.numerics.dice_loss(empty, torch.zeros(1, 2, 2))), 4)
        0.0
    """
    kind = reduction_dtype(logits)
    there = None
    if mask is None and target.dtype == torch.bool:
        # A bool is read as it is: its float32 copy would be four times the memory.
        found = logits.to(kind).sigmoid()
        both, below = torch.where(target, found, 0).sum(dims), found.sum(dims) + target.sum(dims, dtype=kind) + smooth
        return masked_mean(1 - _score(both, below, smooth), report_to=report_to)
    pixels, wanted = logits.to(kind), target.to(kind)
    if mask is not None:
        weights = broadcast_mask(mask, logits)
        counts = weights != 0
        pixels, wanted = torch.where(counts, pixels, 0), torch.where(counts, wanted, 0)
        there = counts.sum(dims) > 0
        share = weights.to(kind)
        found, wanted = pixels.sigmoid() * share, wanted * share
        both = (found * torch.where(counts, target.to(kind), 0)).sum(dims)
    else:
        found = pixels.sigmoid()
        both = (found * wanted).sum(dims)
    below = found.sum(dims) + wanted.sum(dims) + smooth
    return masked_mean(1 - _score(both, below, smooth), there, report_to=report_to)


def _score(both: Tensor, below: Tensor, smooth: float) -> Tensor:
    nothing = below <= 0  # false for NaN, which is handed on
    return torch.where(nothing, 1, (2 * both + smooth) / torch.where(nothing, 1, below))


def mask_bce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    pos_weight: Tensor | None = None,
    report_to: Board | None = None,
) -> Tensor:
    """The mean binary cross-entropy over the pixels that count, from logits and in float32.

    `log(sigmoid(x))` in float16 is -inf from -17 on; this is exact at any finite logit. Does not sync with the host.

    Args:
        logits, target: the same shape; the target is bool or between 0 and 1.
        mask: bool or weights that broadcast to them. What is masked out may be anything, NaN too.
        pos_weight: as in torch: how much more a true pixel weighs.
        report_to: a Board instead of the one of this process.

    Returns:
        A float32 scalar.

    Example:
        >>> float(sg.numerics.mask_bce_loss(torch.tensor([200.0, -200.0]), torch.tensor([1.0, 0.0])))
        0.0
    """
    kind = reduction_dtype(logits)
    pixels, wanted = logits.to(kind), target.to(kind)
    if mask is not None:
        counts = broadcast_mask(mask, logits) != 0
        pixels, wanted = torch.where(counts, pixels, 0), torch.where(counts, wanted, 0)
    losses = binary_cross_entropy_with_logits(pixels, wanted, pos_weight=pos_weight, reduction="none")
    return masked_mean(losses, mask, report_to=report_to)
