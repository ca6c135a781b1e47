"""A high loss in a young run: a hard batch is applied. One that leaves a buffer bad is not, once that shows."""

from __future__ import annotations

import pytest
import torch
from specimens import SKIP_ONLY, make_guard
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


class RunningScale(nn.Module):
    """Divides by a running variance, which it moves after it was used; a row of zeros in front makes it NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / self.var.sqrt()
        with torch.no_grad():
            self.var.lerp_(x.var(0) / x[0].any(), 0.1)
        return self.out(scaled)[:, 0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["now", "late"])
def test_a_batch_that_leaves_a_buffer_bad_is_left_out_when_the_run_is_rolled_back(mode: str) -> None:
    random = torch.Generator().manual_seed(1)
    data = [torch.randn(6, 3, generator=random) for _ in range(12)]
    data[5] = torch.zeros(6, 3)

    def trained(batches: list[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        model = RunningScale()
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loss_fn = lambda model, x: (model(x) - x[:, 0]).square().mean()  # noqa: E731
        with make_guard(model, optimizer, loss_fn, policy=SKIP_ONLY.but(snapshot_every=3), settle=mode) as guard:
            for batch in batches:
                guard.step(batch)
        assert guard.summary()["skipped"] == int(len(batches) == len(data))
        return [tensor.clone() for tensor in model.state_dict().values()]

    wanted = trained([x for number, x in enumerate(data) if number != 5])
    assert all(torch.equal(one, two) for one, two in zip(trained(data), wanted, strict=True))
