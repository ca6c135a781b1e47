"""Regression on latents, safe at the zero vector in forward and backward.

The plain forms fail there: x / |x| is NaN, and `F.normalize(x, eps=1e-8)` has a gradient of 1e8 (NaN in float16). Here
a vector shorter than `min_norm` is divided by `min_norm` instead of its length, so the gradient is never larger
than 1 / min_norm, and a zero vector still learns which way to go.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...records.errors import UsageError
from ..kernels import fused
from ..masked_means import masked_mean, reduction_dtype
from ..published_findings import Board, board
from ..row_pieces import as_rows

MIN_NORM = 1e-3


def safe_normalise(
    vectors: Tensor, *, dim: int = -1, min_norm: float = MIN_NORM, report_to: Board | None = None
) -> Tensor:
    """x / max(|x|, min_norm), whose gradient is at most 1 / min_norm.

    Neither the squares of large vectors overflow nor those of small ones vanish: each vector is brought to a largest
    entry of one first. Vectors shorter than `min_norm` are counted on the board as `zero_vector`. Returns float32, or
    float64 for float64 vectors. Does not sync with the host; allocates a few tensors of the size of `vectors`.

    Args:
        vectors: any floating dtype, any shape.
        dim: the axis of the vectors.
        min_norm: vectors shorter than this are divided by this.
        report_to: a Board instead of the one of this process.

    Returns:
        float32, or float64 for float64 vectors, of the same shape.

    Example:
        >>> sg.numerics.safe_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if not min_norm > 0:
        raise UsageError(f"min_norm={min_norm} must be above zero: it bounds the gradient by 1 / min_norm.")
    unit, short = _Normalise.apply(vectors, dim, min_norm)  # type: ignore[no-untyped-call]
    (report_to or board()).count("zero_vector", short)
    made: Tensor = unit
    return made


class _Normalise(Function):
    """x / max(|x|, min_norm), and which vectors were shorter."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, dim: int, min_norm: float) -> tuple[Tensor, Tensor]:
        ctx.dim, ctx.dtype = dim, vectors.dtype
        ctx.fused = vectors.dim() == 2 and dim in (1, -1) and fused(vectors)
        if ctx.fused:
            from ..kernels.unit_rows import unit_rows

            unit, largest, norm, short = unit_rows(vectors, min_norm)
            ctx.save_for_backward(unit, largest, norm, short)
            ctx.mark_non_differentiable(short)
            return unit, short
        wide = vectors.to(reduction_dtype(vectors))
        # amax and amin read; abs would write another tensor first.
        largest = torch.maximum(wide.amax(dim, keepdim=True), -wide.amin(dim, keepdim=True)).clamp_(min=min_norm)
        unit = wide / largest
        norm = torch.linalg.vector_norm(unit, dim=dim, keepdim=True)
        shortest = min_norm / largest
        short = norm < shortest
        norm = torch.where(short, shortest, norm)
        unit.div_(norm)
        ctx.save_for_backward(unit, largest, norm, short)
        ctx.mark_non_differentiable(short)
        return unit, short

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        unit, largest, norm, short = ctx.saved_tensors
        if ctx.fused:
            from ..kernels.unit_rows import unit_rows_gradient

            return unit_rows_gradient(unit, largest, norm, short, grad).to(ctx.dtype), None, None
        along = (grad * unit).sum(ctx.dim, keepdim=True).masked_fill_(short, 0)
        # Divided by the one and then the other: their product may not be a float.
        return torch.addcmul(grad, unit, along, value=-1).div_(norm).div_(largest).to(ctx.dtype), None, None


def cosine_loss(
    pred: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    min_norm: float = MIN_NORM,
    report_to: Board | None = None,
) -> Tensor:
    """The mean of 1 - cos(pred, target) over the vectors that count; a zero vector has cosine 0.

    Args:
        pred, target: vectors along `dim`, any floating dtype; the loss is taken in float32.
        mask: bool or weights in the shape without `dim`. What is masked out may be anything, NaN too.
        dim: the axis of the vectors.
        min_norm: vectors shorter than this count as this long.
        report_to: a Board instead of the one of this process.

    Returns:
        A float32 scalar.

    Example:
        >>> float(sg.numerics.cosine_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])))
        0.0
    """
    if _fusible(pred, target, mask, dim):
        return masked_mean(_distances(pred, target, mask, min_norm, False, report_to), mask, report_to=report_to)
    ours, theirs = _counted(pred, mask, dim), _counted(target, mask, dim)
    one = safe_normalise(ours, dim=dim, min_norm=min_norm, report_to=report_to)
    other = safe_normalise(theirs, dim=dim, min_norm=min_norm, report_to=report_to)
    return masked_mean(1 - (one * other).sum(dim), mask, report_to=report_to)


def normalised_mse(
    pred: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    min_norm: float = MIN_NORM,
    report_to: Board | None = None,
) -> Tensor:
    """The mean square of pred/|pred| - target/|target|, over entries: (2 - 2 cos) / d for vectors of length d.

    The lengths of both are discarded, so a model trained with it does not learn them: standardise the latents and use
    `latent_mse` where the length means something. Arguments as for `cosine_loss`.

    Args:
        pred, target, mask, dim, min_norm, report_to: as for `cosine_loss`.

    Returns:
        A float32 scalar.

    Example:
        >>> float(sg.numerics.normalised_mse(torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 0.0]])))
        0.0
    """
    if _fusible(pred, target, mask, dim):
        return masked_mean(_distances(pred, target, mask, min_norm, True, report_to), mask, report_to=report_to)
    ours, theirs = _counted(pred, mask, dim), _counted(target, mask, dim)
    one = safe_normalise(ours, dim=dim, min_norm=min_norm, report_to=report_to)
    other = safe_normalise(theirs, dim=dim, min_norm=min_norm, report_to=report_to)
    return masked_mean((one - other).square().mean(dim), mask, report_to=report_to)


def _fusible(pred: Tensor, target: Tensor, mask: Tensor | None, dim: int) -> bool:
    shaped = pred.shape == target.shape and pred.dim() > 0 and dim in (-1, pred.dim() - 1)
    return shaped and (mask is None or mask.shape == pred.shape[:-1]) and fused(pred, target)


def _distances(
    pred: Tensor, target: Tensor, mask: Tensor | None, min_norm: float, squared: bool, report_to: Board | None
) -> Tensor:
    """Of each vector, in the shape without the last dimension: by one kernel for all of it."""
    if not min_norm > 0:
        raise UsageError(f"min_norm={min_norm} must be above zero: it bounds the gradient by 1 / min_norm.")
    counts_N = None if mask is None else (mask != 0).reshape(-1)
    distances_N, short = _UnitPairs.apply(as_rows(pred), as_rows(target), counts_N, min_norm, squared)  # type: ignore[no-untyped-call]
    (report_to or board()).count("zero_vector", short)
    made: Tensor = distances_N.reshape(pred.shape[:-1])
    return made


class _UnitPairs(Function):
    """How far the directions of two rows are apart, on a GPU."""

    @staticmethod
    def forward(
        ctx: Any, one_ND: Tensor, other_ND: Tensor, counts_N: Tensor | None, min_norm: float, squared: bool
    ) -> tuple[Tensor, Tensor]:
        from ..kernels.unit_pairs import unit_pair_rows

        distances_N, short_N2, statistics = unit_pair_rows(one_ND, other_ND, counts_N, min_norm, squared)
        ctx.save_for_backward(one_ND, other_ND, counts_N, short_N2, statistics)
        ctx.squared = squared
        ctx.mark_non_differentiable(short_N2)
        return distances_N, short_N2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from ..kernels.unit_pairs import unit_pair_gradient

        one_ND, other_ND, counts_N, short_N2, found = ctx.saved_tensors
        both = [
            unit_pair_gradient(
                one_ND, other_ND, counts_N, short_N2, found, grad_N, squared=ctx.squared, of_second=second
            )
            if ctx.needs_input_grad[second]
            else None
            for second in (False, True)
        ]
        return *both, None, None, None


def latent_mse(
    pred: Tensor, target: Tensor, *, mask: Tensor | None = None, dim: int = -1, report_to: Board | None = None
) -> Tensor:
    """The mean square of pred - target, taken in float32: in float16 a difference of 256 has an infinite square.

    Arguments as for `cosine_loss`.

    Args:
        pred, target, mask, dim, report_to: as for `cosine_loss`.

    Returns:
        A float32 scalar.

    Example:
        >>> half = torch.tensor([[300.0]], dtype=torch.float16)
        >>> float(sg.numerics.latent_mse(half, torch.zeros_like(half)))
        90000.0
    """
    kind = reduction_dtype(pred, target)
    gap = _counted(pred, mask, dim).to(kind) - _counted(target, mask, dim).to(kind)
    return masked_mean(gap.square().mean(dim), mask, report_to=report_to)


def _counted(vectors: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Ones in place of vectors that do not count: a NaN there would come back through the gradient of the norm, and
    zeros would be counted as zero vectors."""
    if mask is None:
        return vectors
    return torch.where((mask != 0).unsqueeze(dim), vectors, torch.ones((), dtype=vectors.dtype, device=vectors.device))
