"""The bounds of `bounds.py` over every number of a tensor: read once, written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def bend(values: Tensor, limit: float, knee: float) -> Tensor:
    return _launched(values, None, limit, knee, True)


def bend_gradient(values: Tensor, grad: Tensor, limit: float, knee: float) -> Tensor:
    return _launched(values, grad, limit, knee, True)


def cap(values: Tensor, limit: float) -> Tensor:
    return _launched(values, None, limit, 0.0, False)


def cap_gradient(values: Tensor, grad: Tensor, limit: float) -> Tensor:
    return _launched(values, grad, limit, 0.0, False)


def _launched(values: Tensor, grad: Tensor | None, limit: float, knee: float, bends: bool) -> Tensor:
    values = values.contiguous()
    made = torch.empty_like(values)
    # A gradient that is one number for all (of a sum, say) is read as one number.
    whole = grad is not None and any(grad.stride())
    slopes = values if grad is None else grad.contiguous() if whole else grad
    with torch.cuda.device_of(values):
        _curve[(triton.cdiv(values.numel(), _BLOCK),)](
            values, slopes, made, values.numel(), limit, knee,
            BENDS=bends, BACKWARD=grad is not None, WHOLE=whole, BLOCK=_BLOCK,
        )  # fmt: skip
    return made


@triton.jit
def _tanh(y):
    # 1 - 2 / (e^2y + 1) loses its digits near zero; the series has them there.
    square = y * y
    series = y * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))))
    return tl.where(tl.abs(y) < 0.25, series, 1 - 2 / (tl.exp(2 * y) + 1))


@triton.jit
def _curve(
    values, grads, made, N, limit, knee,
    BENDS: tl.constexpr, BACKWARD: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    x = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    size = tl.abs(x)
    room = limit - knee
    if BACKWARD:
        if BENDS:
            slope = tl.minimum(room / (size + (room - knee)), 1.0)
            slope = slope * slope
        else:
            flat = _tanh(x / limit)
            slope = 1 - flat * flat
        grad = tl.load(grads + at, mask=inside, other=0.0) if WHOLE else tl.load(grads)
        out = slope * grad.to(tl.float32)
    elif BENDS:
        bent = tl.maximum(limit - room * room / (size + (room - knee)), knee)
        out = tl.minimum(size, bent)
        out = tl.where(x < 0, -out, out)
    else:
        out = _tanh(x / limit) * limit
    out = tl.where(x != x, x, out)  # a NaN stays one: minimum and maximum would hide it
    tl.store(made + at, out, mask=inside)
