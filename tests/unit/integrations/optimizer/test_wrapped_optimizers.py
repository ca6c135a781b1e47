"""Optimizers of the user's own that torch's `__init__` has not made, and what a closed guard keeps."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer and shares its groups; does not call torch's `__init__`."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.count = base, 0
        self.param_groups, self.defaults, self.state = base.param_groups, base.defaults, base.state
        self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        answer, self.count = self.base.step(closure), self.count + 1
        if self.count % 5 == 0:
            fast = (p for group in self.param_groups for p in group["params"])
            for parameter, slow in zip(fast, self.slow, strict=True):
                slow.add_(parameter - slow, alpha=0.5)
                parameter.copy_(slow)
        return answer


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch[:, :1]).square().mean()


@pytest.mark.parametrize("way", ["plain", "attach", "guard"])
def test_an_optimizer_around_another_trains_as_without_a_guard(way: str) -> None:
    def trained(way: str) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = Lookahead(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
        guard: Any = None
        if way == "attach":
            guard = sg.attach(optimizer, model=model)
        elif way == "guard":
            guard = sg.Guard(model, optimizer, loss_of)
        for _ in range(20):
            batch = torch.randn(8, 4)
            if way == "guard":
                guard.step(batch)
                continue
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        if guard is not None:
            guard.close()
            assert guard.summary()["guard_faults"] == {}
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(way), trained("plain"))


@pytest.mark.parametrize("way", ["attach", "guard"])
def test_a_closed_guard_keeps_no_copy_of_the_state(way: str) -> None:
    def alive() -> int:
        gc.collect()
        found = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]
        return sum(t.numel() for t in found if t.is_floating_point())

    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    size, before = sum(p.numel() for p in model.parameters()), alive()
    guard: Any = sg.attach(optimizer, model=model) if way == "attach" else sg.Guard(model, optimizer, loss_of)
    for _ in range(8):
        batch = torch.randn(4, 256)
        if way == "guard":
            guard.step(batch)
            continue
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad()
    assert alive() - before > size  # a snapshot at least
    guard.close()
    assert alive() - before < size / 2
    assert guard.summary()["steps"] == 8
