"""A high loss in a young run: a hard batch is applied."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss whose gradient stays short however far away the target is."""
    return (model(batch[:, :4]) - batch[:, 4:]).abs().mean()


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(count)]


def guarded(settle: str) -> tuple[nn.Module, sg.Guard]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), lr=1e-3, fused=settle == "late")
    return model, sg.Guard(model, optimizer, loss_fn, diagnose="off", settle=settle)


@pytest.mark.parametrize("settle", ["now", "late"])
def test_a_heavy_batch_in_a_young_run_is_applied(settle: str) -> None:
    data = batches(16)
    data[12][:, 4] += 500.0
    model, guard = guarded(settle)
    with guard:
        outcomes = [guard.step(batch) for batch in data]
        assert all(outcome.applied for outcome in outcomes)
    assert guard.incidents == []
    plain = nn.Linear(4, 1)
    torch.manual_seed(0)
    plain = nn.Linear(4, 1)
    optimizer = optim.SGD(plain.parameters(), lr=1e-3)
    for batch in data:
        loss_fn(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
