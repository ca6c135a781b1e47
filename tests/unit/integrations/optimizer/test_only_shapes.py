"""A program that tries its training on tensors without values first: on the meta device, or with fake tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode

import steadygrad as sg


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("closure", [False, True])
def test_an_update_of_tensors_without_values_is_made_and_not_judged(kind: str, closure: bool) -> None:
    mode: AbstractContextManager[Any] = FakeTensorMode() if kind == "fake" else nullcontext()
    with mode, torch.device("meta" if kind == "meta" else "cpu"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        guard = sg.attach(optimizer, model=model)

        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).sum()
            loss.backward()
            return loss

        for _ in range(2):
            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
    assert set(optimizer.state) == set(model.parameters())
    guard.close()
    assert guard.summary()["skipped"] == 0
    assert guard.incidents == []
