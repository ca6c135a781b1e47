"""Terms of a loss that were turned into numbers, and parts that get no gradient for good reasons."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg

Total = Callable[[Tensor, Tensor], Tensor]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x).relu()
        return self.head(features), self.aux(features)


def warned(total: Total) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    model = TwoHeads()

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        answer, again = model(x)
        return total(F.cross_entropy(answer, (x[:, 0] > 0).long()), F.mse_loss(again, x))

    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.Guard(model, optimizer, loss_fn) as guard:
        for _ in range(8):
            guard.step(torch.randn(8, 6))
    assert guard.summary()["guard_faults"] == {}
    assert torch.equal(before[-1], model.aux.bias.detach())  # moved for the question alone
    return [(found.slug, found.subject) for found in guard.vitals if found.slug == "detached_graph"]


@pytest.mark.parametrize(
    "total",
    [
        lambda loss, term: loss + 0.5 * term.item(),
        lambda loss, term: loss + term.data,
        lambda loss, term: loss + torch.tensor(float(term.detach())),
    ],
)
def test_a_term_that_was_turned_into_a_number_is_named(total: Total) -> None:
    assert warned(total) == [("detached_graph", "aux.weight")]


@pytest.mark.parametrize("total", [lambda loss, term: loss, lambda loss, term: loss + 0.0 * term.detach()])
def test_a_term_that_the_loss_does_not_depend_on_is_left_alone(total: Total) -> None:
    assert warned(total) == []
