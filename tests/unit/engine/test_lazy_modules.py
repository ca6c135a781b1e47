"""Modules whose parameters and buffers get their shape in the first forward, after the guard was made."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.LazyLinear(8), nn.LazyBatchNorm1d()
        self.head, self.late = nn.LazyLinear(1), nn.LazyLinear(1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = torch.relu(self.norm(self.first(x)))
        return self.head(hidden) + (self.late(hidden) if self.calls > 4 else 0.0)


def train(entry: str, *, bad: bool = False) -> Any:
    torch.manual_seed(0)
    model = Growing()
    optimizer = optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    guard = sg.attach(optimizer, model=model) if entry == "attach" else None
    for number in range(10):
        batch = torch.randn(16, 5)
        if number == 7 and bad:
            if guard is None:
                continue
            batch[2, 2] = math.nan
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    if guard is not None:
        guard.close()
        assert guard.summary()["skipped"] == bad
        assert guard.summary()["guard_faults"] == {}
    return [dict(model.named_parameters()), dict(model.named_buffers()), optimizer.state_dict()["state"]]


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("bad", [False, True])
def test_lazy_modules_train_as_alone_and_a_bad_batch_leaves_no_trace(bad: bool) -> None:
    torch.testing.assert_close(train("attach", bad=bad), train("", bad=bad), rtol=0, atol=0)
