"""Complex parameters are measured with their imaginary parts."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import steadygrad as sg


class Complex(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.randn(4, 4, dtype=dtype)) for _ in range(3)])
        self.last = nn.Linear(4, 1)

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self.layers:
            batch = torch.tanh((batch.to(layer.dtype) @ layer).abs())
        return self.last(batch.float())


def test_no_check_warns_of_a_complex_gradient_and_none_fails() -> None:
    for dtype in (torch.complex64, torch.complex128):
        model = Complex(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with sg.Guard(model, optimizer, lambda m, x: (m(x) - 1).pow(2).mean(), diagnose="off") as guard:
                for _ in range(24):
                    guard.step(torch.randn(8, 4))
        assert guard.summary()["guard_faults"] == {}
        assert guard.summary()["skipped"] == 0
