"""Means over what counts, and the dtype they are taken in."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..records.errors import UsageError
from .published_findings import Board, board

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

    Example:
        >>> sg.numerics.masked_mean(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([True, False, True]))
        tensor(2.)
    """
    if mask is None and denominator is None and values.is_cuda and values.numel():
        dims = (
            tuple(range(values.dim())) if dim is None or not values.dim() else (dim,) if isinstance(dim, int) else dim
        )
        return _mean(values.to(reduction_dtype(values)), dims, math.prod(values.shape[each] for each in dims))
    mean, total = mean_and_weight(values, mask, dim, denominator)
    (report_to or board()).count("empty_mask", total <= 0)
    return mean


def mean_and_weight(
    values: Tensor, mask: Tensor | None, dim: Dims = None, denominator: Tensor | float | None = None
) -> tuple[Tensor, Tensor]:
    """`masked_mean` and the sums of weights, counting nothing."""
    kind = reduction_dtype(values)
    wide = values.to(kind)
    if dim is None or not values.dim():
        wide, dim = wide.reshape(-1), 0
        mask = None if mask is None else broadcast_mask(mask, values).reshape(-1)
    dims = (dim,) if isinstance(dim, int) else dim
    if mask is None:
        number = math.prod(wide.shape[d] for d in dims)
        total = torch.full((1,) * wide.dim(), number, dtype=kind, device=wide.device)
    else:
        mask = broadcast_mask(mask, wide)
        total = mask.sum(dims, keepdim=True, dtype=kind)
        wide = torch.where(mask != 0 if mask.dtype != torch.bool else mask, wide, 0)
    below = total
    if isinstance(denominator, Tensor):
        below = denominator.to(wide.device, kind)
    elif denominator is not None:
        below = torch.full_like(total, denominator)  # made on the device: nothing is copied there
    nothing = below <= 0  # false for NaN, which is handed on
    safe = torch.where(nothing, 1, below)
    shares = wide / safe if mask is None or mask.dtype == torch.bool else wide * (mask / safe)
    # Zeroed last, so that not even a gradient comes back where there is nothing to divide by.
    shares = torch.where(nothing, 0, shares) if denominator is not None else shares
    return shares.sum(dims), total


def mean_of_counted(values: Tensor, number: Tensor) -> Tensor:
    """sum(values) / number for float32 or float64 values that are zero wherever they do not count; `number` is at least
    one. Does not overflow before the division."""
    if values.is_cuda:
        return _mean(values, tuple(range(values.dim())), number)
    return (values / number).sum()


def _mean(wide: Tensor, dims: tuple[int, ...], number: Tensor | int) -> Tensor:
    made: Tensor = _Mean.apply(wide, dims, number)  # type: ignore[no-untyped-call]
    return made


class _Mean(Function):
    """The mean on a GPU. A sum in float64 cannot overflow either, and writes no second tensor, which is what costs."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor, dims: tuple[int, ...], number: Tensor | int) -> Tensor:
        ctx.shape, ctx.dims, ctx.number = wide.shape, dims, number
        total = wide.sum(dims, dtype=torch.float64) if dims else wide.double()
        return (total / number).to(wide.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share = grad / ctx.number
        for each in sorted(each % len(ctx.shape) for each in ctx.dims):
            share = share.unsqueeze(each)
        return share.expand(ctx.shape), None, None


def broadcast_mask(mask: Tensor, values: Tensor) -> Tensor:
    """The mask in the shape of `values`, or a sentence about the two shapes."""
    try:
        return mask.expand(values.shape)
    except RuntimeError as error:
        raise UsageError(
            f"A mask of shape {tuple(mask.shape)} does not fit values of shape {tuple(values.shape)}: it must "
            "broadcast to them. For a mask over tokens beside values over tokens and features, pass mask[..., None]."
        ) from error
