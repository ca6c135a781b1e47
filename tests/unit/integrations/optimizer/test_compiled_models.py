"""A model that is compiled after its optimizer was attached: one graph as without a guard, and an exact refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, about its own internals


def train(bad_at: int | None, *, attach: bool, steps: int = 12) -> tuple[dict[str, Tensor], int]:
    """The state in the end, and how many graphs were compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = sg.attach(optimizer, model=model) if attach else None
    compiled = torch.compile(model, backend=backend)
    data = list(torch.randn(steps, 4, 3, generator=torch.Generator().manual_seed(7)))
    for batch in data if bad_at is None else [*data[:bad_at], torch.full((4, 3), math.nan), *data[bad_at:]]:
        optimizer.zero_grad()
        compiled(batch).pow(2).mean().backward()
        optimizer.step()
    if guard is not None:
        assert guard.summary()["skipped"] == int(bad_at is not None)
        guard.close()
    return {**model.state_dict(), "rng": torch.get_rng_state()}, len(graphs)


def test_it_is_compiled_as_often_as_without_a_guard() -> None:
    plain, graphs = train(None, attach=False)
    attached, with_guard = train(None, attach=True)
    assert (graphs, with_guard) == (1, 1)
    assert all(torch.equal(plain[name], attached[name]) for name in plain)


@pytest.mark.parametrize("bad_at", [3, 9])
def test_a_refused_batch_leaves_no_trace_of_what_the_compiled_forward_drew(bad_at: int) -> None:
    plain, _ = train(None, attach=False)
    attached, _ = train(bad_at, attach=True)
    assert [name for name in plain if not torch.equal(plain[name], attached[name])] == []
