"""A program may handle an error in the middle of a step and go on: a bad batch after it leaves no trace, and what the
abandoned step moved stays, as without the guard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.Linear(12, 1)
        )  # fmt: skip
        self.error: type[BaseException] | None = None

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.norm(self.first(batch))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.last(self.drop(hidden))


def raise_in_hook(_gradient: Tensor) -> None:
    raise ValueError


def train(where: str, *, guarded: bool) -> list[Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = sg.attach(optimizer, model=model) if guarded else None
    noise = torch.Generator().manual_seed(1)
    for step in range(20):
        batch = torch.randn(8, 6, generator=noise)
        if step == 11:
            if not guarded:
                continue
            batch[2, 3] = float("nan")
        failing = step == 10
        try:
            optimizer.zero_grad()
            if failing and where in ("forward", "interrupt"):
                model.error = ValueError if where == "forward" else KeyboardInterrupt
            output = model(batch)
            if failing and where == "loss":
                raise ValueError
            if failing and where == "backward":
                output.register_hook(raise_in_hook)
            (output - 1).pow(2).mean().backward()
            optimizer.step()
        except (ValueError, KeyboardInterrupt):
            assert failing
    if guard is not None:
        guard.close()
        assert guard.summary()["skipped"] == 1
        assert guard.summary()["guard_faults"] == {}
    return [*model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("where", ["forward", "interrupt", "loss", "backward"])
def test_a_bad_batch_after_an_error_that_the_program_handles_is_as_if_left_out(where: str) -> None:
    assert all(map(torch.equal, train(where, guarded=True), train(where, guarded=False)))


def test_a_model_that_calls_itself_is_one_call() -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, batch: Tensor, depth: int = 2) -> Tensor:
            below = self(batch, depth - 1) if depth else batch
            return self.norm(self.linear(below))

    def run(*, guarded: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Tree()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        guard = sg.attach(optimizer, model=model) if guarded else None
        for step in range(6):
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            if step == 3 and not guarded:
                continue
            batch[0, 0] = float("nan") if step == 3 else 1.0
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
        if guard is not None:
            guard.close()
            assert guard.summary()["skipped"] == 1
        return list(model.state_dict().values())

    assert all(map(torch.equal, run(guarded=True), run(guarded=False)))
