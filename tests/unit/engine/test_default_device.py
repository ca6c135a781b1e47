"""A program may make its tensors on another device by default: the guard's own are not among them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import steadygrad as sg


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()


def test_a_default_device_without_memory_makes_no_part_of_the_guard_fail() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    generator = torch.Generator("cpu").manual_seed(1)
    try:
        torch.set_default_device("meta")
        with sg.Guard(model, optimizer, loss_fn, diagnose="off") as guard:
            for step in range(16):
                batch = torch.randn(8, 6, generator=generator, device="cpu")
                if step == 11:
                    batch[1, 1] = float("nan")
                guard.step(batch)
    finally:
        torch.set_default_device(None)
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
