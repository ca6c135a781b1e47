"""What the tests of the stable parts share: odd numbers, references in float64, and the errors that are promised."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALVES)

# Of a loss: taken in float32 whatever came in. Of a gradient: rounded once more to the dtype of what it belongs to.
LOSS_ERROR = 1e-5
GRADIENT_ERROR = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
SMALLEST = {torch.float32: 1e-9, torch.float16: 2.0**-24, torch.bfloat16: 1e-9}

ODD = (
    0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 6e-8, 3e4, -3e4, 7e4, 1e10, -1e10, 1e30, -1e30, 3.4e38, -3.4e38,
)  # fmt: skip
finite = st.one_of(st.sampled_from(ODD), st.floats(-50, 50, width=32))
anything = st.one_of(finite, st.sampled_from((math.inf, -math.inf, math.nan)))


def matrices(values: st.SearchStrategy[float], rows: int = 3, width: int = 5) -> st.SearchStrategy[Tensor]:
    """float32 matrices of a fixed size: the odd numbers matter, not the shape."""
    return st.lists(values, min_size=rows * width, max_size=rows * width).map(
        lambda numbers: torch.tensor(numbers, dtype=torch.float32).reshape(rows, width)
    )


def masks(size: int = 3) -> st.SearchStrategy[Tensor]:
    return st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor)


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient."""
    leaf = at.detach().clone().requires_grad_()
    value = loss(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


def assert_agrees(loss: Callable[[Tensor], Tensor], reference: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """`loss` in the dtype of `at` beside `reference` in float64 from the same rounded numbers."""
    value, slope = gradient(loss, at)
    wanted, wanted_slope = gradient(reference, at.double())
    assert value.dtype == (torch.float64 if at.dtype == torch.float64 else torch.float32)
    assert slope.dtype == at.dtype
    torch.testing.assert_close(value.double(), wanted, rtol=LOSS_ERROR, atol=LOSS_ERROR)
    scale = float(wanted_slope.abs().max())
    torch.testing.assert_close(
        slope.double(),
        wanted_slope,
        rtol=GRADIENT_ERROR[at.dtype],
        atol=GRADIENT_ERROR[torch.float32] * scale + SMALLEST[at.dtype],
    )
