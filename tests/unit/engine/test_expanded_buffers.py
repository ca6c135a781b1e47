"""A buffer may show one number in memory many times (`expand`): torch refuses to write such a tensor as a whole, and a
refused batch leaves no trace all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("wide", torch.zeros(1, 3).expand(50, 3), persistent=False)
        self.register_buffer("seen", torch.zeros(1).expand(8))

    def forward(self, batch: Tensor) -> Tensor:
        self.seen[:1] += batch[0, 0].detach()
        return self.norm(self.linear(batch)) + self.wide[0]


def train(entry: str) -> tuple[list[Tensor], dict[str, object]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    plain = entry == "plain"
    if entry == "Guard":
        guard = sg.Guard(model, optimizer, lambda m, b: m(b).pow(2).mean())
    elif entry == "attach":
        guard = sg.attach(optimizer, model=model)
    for step in range(12):
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step == 7 and plain:
            continue
        if step == 7:
            batch[0, 0] = float("nan")
        if entry == "Guard":
            guard.step(batch)
            continue
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    summary = {}
    if not plain:
        guard.close()
        summary = guard.summary()
    return [value.clone() for value in (*model.state_dict().values(), model.wide)], summary


@pytest.mark.parametrize("entry", ["Guard", "attach"])
def test_a_refused_batch_leaves_no_trace_in_a_model_with_expanded_buffers(entry: str) -> None:
    found, summary = train(entry)
    assert summary["skipped"] == 1
    assert summary["guard_faults"] == {}
    assert all(map(torch.equal, found, train("plain")[0]))
