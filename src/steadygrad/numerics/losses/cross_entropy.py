"""Cross-entropy over the tokens that count, and the z-loss. Shapes: N tokens, V vocabulary."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...records.errors import UsageError
from ..kernels import fused
from ..masked_means import broadcast_mask, masked_mean, reduction_dtype
from ..published_findings import Board
from ..row_pieces import as_rows, clear_rows_, pieces, softmax

Reduction = Literal["mean", "sum", "none"]


def masked_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None = None,
    ignore_index: int = -100,
    z_weight: float = 0.0,
    reduction: Reduction = "mean",
    denominator: Tensor | float | None = None,
    report_to: Board | None = None,
) -> Tensor:
    """The mean of -log softmax(logits)[label] over the tokens that count.

    A token counts if its label is not `ignore_index` and its `mask` (bool, or a weight) is not zero. The logits of the
    others are never looked at: a NaN there stays there, where `F.cross_entropy` turns its gradient NaN. With no token
    left the loss is zero, the gradients are zero, and the board counts an `empty_mask`. Logits of -inf (a masked
    vocabulary) are fine as long as the label is not one of them.

    The softmax is taken in float32 for float16 and bfloat16 logits, and recomputed in backward: no float32 copy of the
    logits is made, and nothing of their size is kept for backward but the logits. A Triton kernel where there is a GPU,
    piece by piece elsewhere. Does not sync with the host. Once differentiable.

    Args:
        logits: (..., V), any floating dtype.
        labels: (...), integers.
        z_weight: adds z_weight * log(sum(exp(logits)))^2 for each token, see `z_loss`.
        denominator: divide the sum by this in place of the sum of weights, with `reduction="mean"`.

    Returns:
        float32, or float64 for float64 logits; of the shape of the labels for `reduction="none"`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [float("nan"), 0.0]])
        >>> round(float(sg.numerics.masked_cross_entropy(logits, torch.tensor([0, -100]))), 4)
        0.1269
    """
    if logits.shape[:-1] != labels.shape:
        raise UsageError(
            f"Logits of shape {tuple(logits.shape)} need labels of shape {tuple(logits.shape[:-1])}, not "
            f"{tuple(labels.shape)}."
        )
    weights = labels != ignore_index
    if mask is not None:
        given = broadcast_mask(mask, labels)
        weights = weights & given if given.dtype == torch.bool else weights * given
    counts_N = (weights != 0).reshape(-1)
    labels_N = torch.where(counts_N, labels.reshape(-1), 0)
    losses_N: Tensor = _CrossEntropyRows.apply(as_rows(logits), labels_N, counts_N, z_weight)  # type: ignore[no-untyped-call]
    losses = losses_N.reshape(labels.shape)
    match reduction:
        case "none":
            return losses * weights if mask is not None else losses
        case "sum":
            return masked_mean(losses, weights, denominator=1.0, report_to=report_to)
        case "mean":
            return masked_mean(losses, weights, denominator=denominator, report_to=report_to)
    raise UsageError(f"reduction={reduction!r} is not known: pass 'mean', 'sum' or 'none'.")


def z_loss(logits: Tensor, *, mask: Tensor | None = None, report_to: Board | None = None) -> Tensor:
    """The mean of log(sum(exp(logits)))^2 over the tokens that count: it pulls the normaliser of the softmax to one.

    The honest alternative to clamping logits: they stay small because the model learns it, and every token keeps its
    gradient. 1e-4 is the usual weight. Memory and precision as in `masked_cross_entropy`; does not sync with the host.

    Args:
        logits: (..., V). mask: (...), bool or weights.
        report_to: a Board instead of the one of this process.

    Returns:
        A float32 scalar.

    Example:
        >>> round(float(sg.numerics.z_loss(torch.zeros(3, 1))), 4)
        0.0
    """
    shape = logits.shape[:-1]
    weights = torch.ones(shape, dtype=torch.bool, device=logits.device)
    if mask is not None:
        weights = broadcast_mask(mask, weights)
    normalisers_N: Tensor = _NormaliserRows.apply(as_rows(logits), (weights != 0).reshape(-1))  # type: ignore[no-untyped-call]
    return masked_mean(normalisers_N.reshape(shape).square(), weights, report_to=report_to)


class _CrossEntropyRows(Function):
    """-log softmax(row)[label] + z_weight * logsumexp(row)^2 for each row that counts, zero for the others."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, counts_N: Tensor, z_weight: float) -> Tensor:
        ctx.z_weight = z_weight
        if fused(logits_NV):
            from ..kernels.softmax_rows import cross_entropy_rows

            losses_N, normalisers_N = cross_entropy_rows(logits_NV, labels_N, counts_N, z_weight)
            ctx.save_for_backward(logits_NV, labels_N, counts_N, normalisers_N)
            return losses_N
        ctx.save_for_backward(logits_NV, labels_N, counts_N, None)
        kind = reduction_dtype(logits_NV)
        losses_N = torch.zeros(len(logits_NV), dtype=kind, device=logits_NV.device)
        for part in pieces(logits_NV):
            logp = softmax(logits_NV[part], kind, log=True)
            losses = -logp.gather(1, labels_N[part, None])[:, 0]
            if z_weight:
                losses += z_weight * logits_NV[part].to(kind).logsumexp(-1).square()
            losses_N[part] = torch.where(counts_N[part], losses, 0)
        return losses_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        logits_NV, labels_N, counts_N, normalisers_N = ctx.saved_tensors
        if normalisers_N is not None:
            from ..kernels.softmax_rows import softmax_gradient

            return (
                softmax_gradient(logits_NV, normalisers_N, counts_N, grad_N, labels_N, ctx.z_weight),
                None,
                None,
                None,
            )
        kind = reduction_dtype(logits_NV)
        gradient_NV = torch.empty_like(logits_NV)
        for part in pieces(logits_NV):
            gradient = softmax(logits_NV[part], kind)
            if ctx.z_weight:
                gradient *= 1 + 2 * ctx.z_weight * logits_NV[part].to(kind).logsumexp(-1, keepdim=True)
            # Not scatter_add_, which refuses torch's deterministic mode on a GPU.
            own = labels_N[part, None]
            gradient.scatter_(1, own, gradient.gather(1, own) - 1)
            torch.mul(gradient, grad_N[part, None], out=gradient_NV[part])
            clear_rows_(gradient_NV[part], counts_N[part])
        return gradient_NV, None, None, None


class _NormaliserRows(Function):
    """logsumexp of each row that counts, zero for the others."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, counts_N: Tensor) -> Tensor:
        if fused(logits_NV):
            from ..kernels.softmax_rows import normaliser_rows

            normalisers_N = normaliser_rows(logits_NV, counts_N)
            ctx.save_for_backward(logits_NV, counts_N, normalisers_N)
            return normalisers_N
        ctx.save_for_backward(logits_NV, counts_N, None)
        kind = reduction_dtype(logits_NV)
        normalisers_N = torch.zeros(len(logits_NV), dtype=kind, device=logits_NV.device)
        for part in pieces(logits_NV):
            normalisers_N[part] = torch.where(counts_N[part], logits_NV[part].to(kind).logsumexp(-1), 0)
        return normalisers_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        logits_NV, counts_N, normalisers_N = ctx.saved_tensors
        if normalisers_N is not None:
            from ..kernels.softmax_rows import softmax_gradient

            return softmax_gradient(logits_NV, normalisers_N, counts_N, grad_N, None, 0.0), None
        gradient_NV = torch.empty_like(logits_NV)
        for part in pieces(logits_NV):
            gradient = softmax(logits_NV[part], reduction_dtype(logits_NV))
            torch.mul(gradient, grad_N[part, None], out=gradient_NV[part])
            clear_rows_(gradient_NV[part], counts_N[part])
        return gradient_NV, None
