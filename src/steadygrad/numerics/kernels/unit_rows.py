"""x / max(|x|, min_norm) for rows, as `latent.py` defines it, and its gradient. One program a row.

Shapes: N rows, D numbers each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def unit_rows(rows_ND: Tensor, min_norm: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The unit rows in float32, the largest entry and the norm in units of it, and which rows were shorter."""
    unit_ND = torch.empty(rows_ND.shape, dtype=torch.float32, device=rows_ND.device)
    largest_N1 = torch.empty((len(rows_ND), 1), dtype=torch.float32, device=rows_ND.device)
    norm_N1, short_N1 = torch.empty_like(largest_N1), torch.empty_like(largest_N1, dtype=torch.bool)
    with torch.cuda.device_of(rows_ND):
        _forward[(len(rows_ND),)](
            rows_ND, unit_ND, largest_N1, norm_N1, short_N1, rows_ND.stride(0), rows_ND.shape[1], min_norm, BLOCK=_BLOCK
        )
    return unit_ND, largest_N1, norm_N1, short_N1


def unit_rows_gradient(unit: Tensor, largest: Tensor, norm: Tensor, short: Tensor, grad: Tensor) -> Tensor:
    made, grad = torch.empty_like(unit), grad.contiguous()
    with torch.cuda.device_of(unit):
        _backward[(len(unit),)](unit, grad, largest, norm, short, made, unit.shape[1], BLOCK=_BLOCK)
    return made


@triton.jit
def _forward(rows, unit, largests, norms, shorts, stride, D, min_norm, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    rows += row * stride
    unit += row * D
    most = tl.zeros((BLOCK,), tl.float32)
    spoilt = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, D, BLOCK):
        x = tl.load(rows + block + offsets, mask=block + offsets < D, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(x))
        spoilt += x * 0.0  # NaN from a NaN, which the maximum would hide
    largest = tl.maximum(tl.max(most, 0), min_norm) + tl.where(tl.sum(spoilt, 0) == 0, 0.0, float("nan"))
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, D, BLOCK):
        x = tl.load(rows + block + offsets, mask=block + offsets < D, other=0.0).to(tl.float32) / largest
        total += x * x
    norm = tl.sqrt(tl.sum(total, 0))
    shortest = min_norm / largest
    short = norm < shortest
    norm = tl.where(short, shortest, norm)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        x = tl.load(rows + block + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(unit + block + offsets, x / largest / norm, mask=inside)
    tl.store(largests + row, largest)
    tl.store(norms + row, norm)
    tl.store(shorts + row, short)


@triton.jit
def _backward(unit, grads, largests, norms, shorts, made, D, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    unit += row * D
    grads += row * D
    made += row * D
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        u = tl.load(unit + block + offsets, mask=inside, other=0.0)
        total += u * tl.load(grads + block + offsets, mask=inside, other=0.0)
    along = tl.where(tl.load(shorts + row) != 0, 0.0, tl.sum(total, 0))
    largest, norm = tl.load(largests + row), tl.load(norms + row)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        u = tl.load(unit + block + offsets, mask=inside, other=0.0)
        g = tl.load(grads + block + offsets, mask=inside, other=0.0)
        # Divided by the one and then the other: their product may not be a float.
        tl.store(made + block + offsets, (g - u * along) / norm / largest, mask=inside)
