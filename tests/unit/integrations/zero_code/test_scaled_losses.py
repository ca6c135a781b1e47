"""A loss that the program itself scales before backward."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from steadygrad.integrations.zero_code.hooks.backward_losses import BackwardPasses


def passes_of(loss: torch.Tensor) -> BackwardPasses:
    passes = BackwardPasses()
    passes.begin(loss)
    return passes


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 2.0**127), (torch.float16, 1024.0)])
def test_a_loss_that_only_a_loss_scale_makes_infinite_is_not_bad(dtype: torch.dtype, scale: float) -> None:
    loss = torch.tensor(300.0, dtype=dtype, requires_grad=True) * scale
    assert math.isinf(float(loss.detach()))
    passes = passes_of(loss)
    total = passes.total()
    assert total is not None
    assert math.isfinite(float(total))
    assert passes.first_bad is None


@pytest.mark.parametrize(("value", "factor"), [(math.nan, 2.0**16), (math.inf, 0.25), (math.inf, 2.0)])
def test_a_bad_loss_stays_bad_with_a_factor(value: float, factor: float) -> None:
    passes = passes_of(torch.tensor(value, requires_grad=True) * factor)
    total = passes.total()
    assert total is not None
    assert not math.isfinite(float(total))
    assert passes.first_bad == 1


class Traces(TorchDispatchMode):
    """Calls what it is given, as the trace of a replay does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_bad_loss_of_a_traced_step_with_a_number_in_it_is_looked_into() -> None:
    with Traces():
        loss = torch.full((3,), math.nan, requires_grad=True).div(2000).sum()
        assert passes_of(loss).first_bad == 1
