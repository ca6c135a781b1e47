"""Values born in kernels that torch does not see: Triton, CUDA extensions, and here numpy, which stands for them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class FastLog(torch.autograd.Function):
    """A logarithm whose output is allocated by torch and written by somebody else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        with numpy.errstate(all="ignore"):
            numpy.log(x.detach().numpy(), out=out.numpy())
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad / x


class SlowRoot(torch.autograd.Function):
    """A square root whose backward is written by somebody else: infinite at zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        out = torch.zeros_like(root)
        with numpy.errstate(all="ignore"):
            numpy.divide(grad.numpy(), 2 * root.numpy(), out=out.numpy())
        return out


class Model(nn.Module):
    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel, self.first, self.head = kernel, nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.kernel.apply(nn.functional.softplus(self.first(x[:, :4])) * x[:, 4:]))


@pytest.mark.parametrize(("kernel", "gate", "phase"), [(FastLog, -0.5, "forward"), (SlowRoot, 0.0, "backward")])
def test_the_function_whose_kernel_wrote_it_is_named_and_never_a_finite_state(
    kernel: Any, gate: float, phase: str
) -> None:
    torch.manual_seed(0)
    model = Model(kernel)
    with sg.Guard(model, torch.optim.AdamW(model.parameters()), lambda m, b: m(b).square().mean()) as guard:
        for step in range(8):
            batch = torch.cat([torch.randn(8, 4), torch.ones(8, 1)], 1)
            if step == 5:
                batch[3, 4] = gate
            guard.step(batch)
    (incident,) = guard.incidents
    found = incident.diagnosis
    assert found is not None
    assert found.origin is not None
    assert (found.phase, found.origin.op) == (phase, kernel.__name__)
    assert found.rows == (3,)
    assert any("does not see" in note for note in found.notes)
    assert "drop_rows" in [trial.remedy.slug for trial in found.remedies]
