"""Cross-entropy and normaliser of rows of logits. One program a row. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 4096, 8


def cross_entropy_rows(logits_NV: Tensor, labels_N: Tensor, counts_N: Tensor, z_weight: float) -> tuple[Tensor, Tensor]:
    """The loss of each row that counts, zero for the others; and the normalisers, which backward needs."""
    losses_N = torch.empty(len(logits_NV), dtype=torch.float32, device=logits_NV.device)
    normalisers_N = torch.empty_like(losses_N)
    with torch.cuda.device_of(logits_NV):
        _forward[(len(logits_NV),)](
            logits_NV, labels_N, counts_N, losses_N, normalisers_N, logits_NV.stride(0), logits_NV.shape[1], z_weight,
            LABELLED=True, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return losses_N, normalisers_N


def normaliser_rows(logits_NV: Tensor, counts_N: Tensor) -> Tensor:
    """log(sum(exp(row))) of each row that counts, zero for the others."""
    normalisers_N = torch.empty(len(logits_NV), dtype=torch.float32, device=logits_NV.device)
    with torch.cuda.device_of(logits_NV):
        _forward[(len(logits_NV),)](
            logits_NV, counts_N, counts_N, normalisers_N, normalisers_N, logits_NV.stride(0), logits_NV.shape[1], 0.0,
            LABELLED=False, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return normalisers_N


def softmax_gradient(
    logits_NV: Tensor, normalisers_N: Tensor, counts_N: Tensor, grad_N: Tensor, labels_N: Tensor | None, z_weight: float
) -> Tensor:
    """(p (1 + 2 z_weight normaliser) - 1 at the label) * grad for rows that count, zero for the others. Without labels
    it is p * grad."""
    gradient_NV = torch.empty(logits_NV.shape, dtype=logits_NV.dtype, device=logits_NV.device)
    with torch.cuda.device_of(logits_NV):
        _backward[(len(logits_NV),)](
            logits_NV, counts_N if labels_N is None else labels_N, counts_N, normalisers_N, grad_N.contiguous(),
            gradient_NV, logits_NV.stride(0), logits_NV.shape[1], z_weight,
            LABELLED=labels_N is not None, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return gradient_NV


@triton.jit
def _forward(
    logits, labels, counts, losses, normalisers, stride, V, z_weight, LABELLED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(counts + row) == 0:
        tl.store(normalisers + row, 0.0)
        tl.store(losses + row, 0.0)
        return
    start = logits + row * stride
    offsets = tl.arange(0, BLOCK)
    # One running maximum and sum for each lane, joined at the end: no reduction across lanes inside the loop.
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, V, BLOCK):
        x = tl.load(start + block + offsets, mask=block + offsets < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # -inf - -inf would be NaN
        total = total * tl.exp(most - base) + tl.exp(x - base)
        most = higher
    highest = tl.max(most, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    normaliser = base + tl.log(tl.sum(total * tl.exp(most - base), 0))
    if not LABELLED:
        normaliser = tl.where(highest == float("inf"), highest, normaliser)
    tl.store(normalisers + row, normaliser)
    if LABELLED:
        own = tl.load(start + tl.load(labels + row)).to(tl.float32)
        tl.store(losses + row, normaliser - own + z_weight * normaliser * normaliser)


@triton.jit
def _backward(
    logits, labels, counts, normalisers, grads, gradient, stride, V, z_weight,
    LABELLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start, into = logits + row * stride, gradient + row * V
    offsets = tl.arange(0, BLOCK)
    if tl.load(counts + row) == 0:
        for block in range(0, V, BLOCK):
            tl.store(into + block + offsets, 0.0, mask=block + offsets < V)
        return
    normaliser, grad = tl.load(normalisers + row), tl.load(grads + row)
    label = tl.load(labels + row).to(tl.int64)
    factor = 1.0 + 2.0 * z_weight * normaliser
    for block in range(0, V, BLOCK):
        inside = block + offsets < V
        x = tl.load(start + block + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        made = tl.exp(x - normaliser) * factor
        if LABELLED:
            made = tl.where(block + offsets == label, made - 1.0, made)
        tl.store(into + block + offsets, made * grad, mask=inside)
