"""Means over what counts, and the dtype they are taken in."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UsageError
from .notice_board import Board, board

Dims = int | tuple[int, ...] | None


def reduction_dtype(*tensors: Tensor) -> torch.dtype:
    """Where sums are taken: float64 if one of these is float64, else float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def masked_mean(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: Dims = None,
    denominator: Tensor | float | None = None,
    report_to: Board | None = None,
) -> Tensor:
    """The mean of `values` where `mask` is true, or weighted by `mask` where that is a float: sum(m v) / sum(m).

    What is masked out (or weighs zero) reaches neither the mean nor the gradient, whatever it is. An empty mask gives
    zero with zero gradients, and is counted on the board as `empty_mask`. Each value is divided before it is added,
    so the mean of large finite values does not overflow. Does not sync with the host; allocates one float32 tensor of
    the size of `values`.

    Args:
        values: any floating dtype, any shape.
        mask: bool, integer or float of a shape that broadcasts to `values`; weights must not be negative.
        dim: what to average over; everything by default.
        denominator: divide by this in place of sum(m), for example the number of tokens in a whole accumulation
            window; zero or less gives zero.

    Returns:
        float32, or float64 for float64 values.

    >>> masked_mean(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([True, False, True]))
    tensor(2.)
    """
    mean, total = mean_and_weight(values, mask, dim, denominator)
    (report_to or board()).count("empty_mask", total <= 0)
    return mean


def mean_and_weight(
    values: Tensor, mask: Tensor | None, dim: Dims = None, denominator: Tensor | float | None = None
) -> tuple[Tensor, Tensor]:
    """`masked_mean` and the sums of weights, counting nothing."""
    kind = reduction_dtype(values)
    dims = tuple(range(values.dim())) if dim is None else dim
    if mask is None:
        weights = torch.ones((), dtype=kind, device=values.device).expand(values.shape)
    else:
        weights = broadcast_mask(mask, values).to(kind)
    total = weights.sum(dims, keepdim=True) if values.dim() else weights
    below = total if denominator is None else torch.as_tensor(denominator, dtype=kind, device=values.device)
    nothing = below <= 0  # false for NaN, which is handed on
    share = torch.where(nothing, 0, weights / torch.where(nothing, 1, below))
    kept = torch.where(weights != 0, values.to(kind), 0)
    return (kept * share).sum(dims) if values.dim() else kept * share, total


def broadcast_mask(mask: Tensor, values: Tensor) -> Tensor:
    """The mask in the shape of `values`, or a sentence about the two shapes."""
    try:
        return mask.expand(values.shape)
    except RuntimeError as error:
        raise UsageError(
            f"A mask of shape {tuple(mask.shape)} does not fit values of shape {tuple(values.shape)}: it must "
            "broadcast to them. For a mask over tokens beside values over tokens and features, pass mask[..., None]."
        ) from error
