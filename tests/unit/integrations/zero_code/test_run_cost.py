"""What `steady run` does in a step does not grow with what else the program has in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


def calls_in(run: Callable[[], Any]) -> int:
    """Calls of functions, of Python and of C, while this runs."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def trained(data: Any, pick: Callable[[Any, int], torch.Tensor], steps: int = 4) -> int:
    """Calls that some updates take whose lines read this data, after as many to get going."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for step in range(steps):
            x = pick(data, step)
            loss = (model(x) - pick(data, step + 1).sum()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run()
    return calls_in(run)


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], torch.Tensor]]] = {
    "a list of numbers": (lambda n: list(range(n)), lambda data, i: torch.tensor([data[i : i + 4]]).float()),
    "a table of lists": (
        lambda n: {key: [1.0, 2.0, 3.0, 4.0] for key in range(n)},
        lambda data, i: torch.tensor([data[i]]),
    ),
    "a list of tensors": (lambda n: [torch.ones(1, 4) for _ in range(n)], lambda data, i: data[i]),
    "tensors by name": (lambda n: {key: torch.ones(1, 4) for key in range(n)}, lambda data, i: data[i]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_takes_as_many_calls_beside_much_data_as_beside_little(watching: Any, kind: str) -> None:
    make, pick = KINDS[kind]
    watching()
    little, much = trained(make(2_000), pick), trained(make(40_000), pick)
    assert much < 1.2 * little, (little, much)


def test_making_an_optimizer_takes_as_many_calls_among_many_objects_as_among_few(watching: Any) -> None:
    watching()

    def make() -> None:
        torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.01)

    make()
    few = calls_in(make)
    many = [[number] for number in range(200_000)]  # lists, which the garbage collector knows one by one
    assert calls_in(make) < few + len(many) // 10
