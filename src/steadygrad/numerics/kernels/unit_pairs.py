"""How far the directions of two rows are apart, as `latent.py` defines it, and its gradient. One program a row.

With u = x / max(|x|, min_norm) of either side: 1 - sum(u v), or the mean of (u - v)^2. Shapes: N rows, D numbers each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_STATISTICS = 7
"""Of each row: largest and norm of the one side, of the other, sum(u v), sum(u u), sum(v v)."""


def unit_pair_rows(
    one_ND: Tensor, other_ND: Tensor, counts_N: Tensor | None, min_norm: float, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The distance of each row that counts, zero for the others; which vectors were short; what backward needs."""
    num_rows, width = one_ND.shape
    distances_N = torch.empty(num_rows, dtype=torch.float32, device=one_ND.device)
    short_N2 = torch.empty((num_rows, 2), dtype=torch.bool, device=one_ND.device)
    statistics = torch.empty((_STATISTICS, num_rows), dtype=torch.float32, device=one_ND.device)
    with torch.cuda.device_of(one_ND):
        _forward[(num_rows,)](
            one_ND, other_ND, short_N2 if counts_N is None else counts_N, distances_N, short_N2, statistics,
            one_ND.stride(0), other_ND.stride(0), num_rows, width, min_norm,
            SQUARED=squared, COUNTED=counts_N is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return distances_N, short_N2, statistics


def unit_pair_gradient(
    one_ND: Tensor,
    other_ND: Tensor,
    counts_N: Tensor | None,
    short_N2: Tensor,
    statistics: Tensor,
    grad_N: Tensor,
    *,
    squared: bool,
    of_second: bool,
) -> Tensor:
    """The gradient for one side; zero for rows that do not count."""
    own, beside = (other_ND, one_ND) if of_second else (one_ND, other_ND)
    made = torch.empty(own.shape, dtype=own.dtype, device=own.device)
    with torch.cuda.device_of(own):
        _backward[(len(own),)](
            own, beside, short_N2 if counts_N is None else counts_N, short_N2, statistics, grad_N.contiguous(), made,
            own.stride(0), beside.stride(0), len(own), own.shape[1],
            SQUARED=squared, COUNTED=counts_N is not None, SECOND=of_second, BLOCK=_BLOCK,
        )  # fmt: skip
    return made


@triton.jit
def _largest(most, spoilt, min_norm):
    # A NaN would be hidden by the maximum; times zero it is still one.
    return tl.maximum(tl.max(most, 0), min_norm) + tl.where(tl.sum(spoilt, 0) == 0, 0.0, float("nan"))


@triton.jit
def _forward(
    ones, others, counts, distances, shorts, statistics, one_stride, other_stride, N, D, min_norm,
    SQUARED: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if COUNTED:  # noqa: SIM102 -- decided when the kernel is compiled, the other when it runs
        if tl.load(counts + row) == 0:
            tl.store(distances + row, 0.0)
            tl.store(shorts + 2 * row, 0)
            tl.store(shorts + 2 * row + 1, 0)
            return
    offsets = tl.arange(0, BLOCK)
    ones += row * one_stride
    others += row * other_stride
    most_x, most_y = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    bad_x, bad_y = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        x = tl.load(ones + block + offsets, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(others + block + offsets, mask=inside, other=0.0).to(tl.float32)
        most_x, most_y = tl.maximum(most_x, tl.abs(x)), tl.maximum(most_y, tl.abs(y))
        bad_x += x * 0.0
        bad_y += y * 0.0
    largest_x, largest_y = _largest(most_x, bad_x, min_norm), _largest(most_y, bad_y, min_norm)
    xx, yy = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        x = tl.load(ones + block + offsets, mask=inside, other=0.0).to(tl.float32) / largest_x
        y = tl.load(others + block + offsets, mask=inside, other=0.0).to(tl.float32) / largest_y
        xx += x * x
        yy += y * y
    norm_x, norm_y = tl.sqrt(tl.sum(xx, 0)), tl.sqrt(tl.sum(yy, 0))
    short_x, short_y = norm_x < min_norm / largest_x, norm_y < min_norm / largest_y
    norm_x = tl.where(short_x, min_norm / largest_x, norm_x)
    norm_y = tl.where(short_y, min_norm / largest_y, norm_y)
    uv, uu, vv, gap = (
        tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32),
        tl.zeros((BLOCK,), tl.float32),
    )  # fmt: skip
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        u = tl.load(ones + block + offsets, mask=inside, other=0.0).to(tl.float32) / largest_x / norm_x
        v = tl.load(others + block + offsets, mask=inside, other=0.0).to(tl.float32) / largest_y / norm_y
        uv += u * v
        uu += u * u
        vv += v * v
        gap += (u - v) * (u - v)
    dot = tl.sum(uv, 0)
    tl.store(distances + row, tl.sum(gap, 0) / D if SQUARED else 1.0 - dot)
    tl.store(shorts + 2 * row, short_x)
    tl.store(shorts + 2 * row + 1, short_y)
    tl.store(statistics + row, largest_x)
    tl.store(statistics + N + row, norm_x)
    tl.store(statistics + 2 * N + row, largest_y)
    tl.store(statistics + 3 * N + row, norm_y)
    tl.store(statistics + 4 * N + row, dot)
    tl.store(statistics + 5 * N + row, tl.sum(uu, 0))
    tl.store(statistics + 6 * N + row, tl.sum(vv, 0))


@triton.jit
def _backward(
    owns, others, counts, shorts, statistics, grads, made, own_stride, other_stride, N, D,
    SQUARED: tl.constexpr, COUNTED: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    owns += row * own_stride
    others += row * other_stride
    made += row * D
    if COUNTED:  # noqa: SIM102 -- decided when the kernel is compiled, the other when it runs
        if tl.load(counts + row) == 0:
            for block in range(0, D, BLOCK):
                tl.store(made + block + offsets, 0.0, mask=block + offsets < D)
            return
    first: tl.constexpr = 2 if SECOND else 0
    second: tl.constexpr = 0 if SECOND else 2
    largest, norm = tl.load(statistics + first * N + row), tl.load(statistics + (first + 1) * N + row)
    other_largest, other_norm = tl.load(statistics + second * N + row), tl.load(statistics + (second + 1) * N + row)
    dot = tl.load(statistics + 4 * N + row)
    own_square = tl.load(statistics + (6 if SECOND else 5) * N + row)
    along = 2.0 * (own_square - dot) / D if SQUARED else -dot
    along = tl.where(tl.load(shorts + 2 * row + (1 if SECOND else 0)) != 0, 0.0, along)
    grad = tl.load(grads + row)
    for block in range(0, D, BLOCK):
        inside = block + offsets < D
        u = tl.load(owns + block + offsets, mask=inside, other=0.0).to(tl.float32) / largest / norm
        v = tl.load(others + block + offsets, mask=inside, other=0.0).to(tl.float32) / other_largest / other_norm
        slope = 2.0 * (u - v) / D if SQUARED else -v
        tl.store(made + block + offsets, grad * (slope - u * along) / norm / largest, mask=inside)
