"""Replicas that drift apart are named, and other parts that begin as copies of one another are left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg

WIDTH, ROWS = 8, 16


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 3))


class Copies(nn.Module):
    """Parts with the same weights; each is given its own part of a batch, along a dimension, or all of it."""

    def __init__(self, parts: int = 2, *, split: int | None = 0, width: int = WIDTH) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 3))
        self.parts = nn.ModuleList(copy.deepcopy(first) for _ in range(parts))
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        if self.split is None:
            return sum(part(x) for part in self.parts) / len(self.parts)
        made = [part(each) for part, each in zip(self.parts, x.chunk(len(self.parts), self.split), strict=True)]
        return torch.cat(made) if self.split == 0 else sum(made) / len(made)


def average(model: nn.Module, *, weights: bool = False) -> None:
    with torch.no_grad():
        for same in zip(*(part.parameters() for part in model.parts), strict=True):
            tensors = same if weights else [each.grad for each in same]
            mean = sum(tensors) / len(tensors)
            for each in tensors:
                each.copy_(mean)


Step = Callable[[nn.Module, Tensor, Tensor, torch.optim.Optimizer, int], None]


def plain(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def exchanged(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    average(model)
    optimizer.step()


def averaged_at_times(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, number: int) -> None:
    plain(model, x, y, optimizer, number)
    if number % 8 == 7:
        average(model, weights=True)


def one_after_another(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    for part, rows in zip(model.parts, range(0, ROWS, ROWS // 2), strict=True):
        F.cross_entropy(part(x[rows : rows + 8]), y[rows : rows + 8]).backward()
    optimizer.step()


def two_towers(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    one, other = (part(half) for part, half in zip(model.parts, x.chunk(2), strict=True))
    F.cross_entropy(one @ other.T, torch.arange(ROWS // 2)).backward()
    optimizer.step()


def named(model: nn.Module, step: Step = plain, count: int = 30, width: int = WIDTH) -> bool:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with sg.attach(optimizer, model=model) as guard:
        for number in range(count):
            x = torch.randn(ROWS, width)
            step(model, x, (x[:, 0] > 0).long(), optimizer, number)
    assert guard.summary()["guard_faults"] == {}
    assert not any(hooks for part in model.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks))
    return "replica_drift" in {found.slug for found in guard.vitals}


def test_replicas_that_do_not_exchange_gradients_are_named() -> None:
    assert named(Copies())
    assert named(Copies(4))
    assert named(Copies(), one_after_another)


def test_replicas_that_exchange_gradients_or_weights_are_left_alone() -> None:
    assert not named(Copies(), exchanged)
    assert not named(Copies(), averaged_at_times)


def test_parts_that_are_no_replicas_are_left_alone() -> None:
    assert not named(Copies(split=None))
    assert not named(Copies(split=1), width=2 * WIDTH)
    assert not named(Copies(), two_towers)


def test_parts_that_began_with_other_weights_or_are_shared_are_left_alone() -> None:
    other, shared = Copies(), Copies()
    other.parts[1] = net()
    shared.parts[1] = shared.parts[0]
    assert not named(other)
    assert not named(shared)


def test_layers_that_begin_as_copies_are_left_alone() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x[:, None, :])[:, 0])

    assert not named(Encoder())
