"""Weights that are finite and of no use after one update: back to before it, once batches that are kept show it."""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadygrad.records.errors import TrainingHalted

STEPS, AT = 40, 20


class Loop:
    def __init__(self, rate: float = 0.05, momentum: float = 0.0, dropout: float = 0.2) -> None:
        torch.manual_seed(0)
        body = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 16), nn.ReLU()]
        self.model = nn.Sequential(*body, nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum)
        self.losses = list[float]()
        torch.manual_seed(7)

    def train(self, batches: Sequence[tuple[Tensor, Tensor]], bad: Sequence[int] = ()) -> None:
        for number, (x, y) in enumerate(batches):
            out = self.model(x)
            loss = (out - y).square().mean()
            if number in bad:
                loss = loss * math.nan
            self.losses.append(loss.item())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, values in enumerate(self.optimizer.state.values()):
            found |= {f"{index}.{name}": value for name, value in values.items() if isinstance(value, Tensor)}
        return {name: value.clone() for name, value in found.items()} | {"random numbers": torch.get_rng_state()}


def batches(*, without: Sequence[int] = (), outlier: float | None = None) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    made = [(torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(STEPS)]
    if outlier is not None:
        made[AT][1][3] = outlier
    return [batch for number, batch in enumerate(made) if number not in without]


def differing(one: dict[str, Tensor], two: dict[str, Tensor]) -> list[str]:
    return [name for name in one.keys() | two.keys() if not torch.equal(one[name], two[name])]


@pytest.mark.parametrize("outlier", [1e15, 1e12])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_sample_that_is_far_too_large_costs_its_update_and_those_until_it_was_shown(
    watching: Any, outlier: float, momentum: float
) -> None:
    alone = Loop(momentum=momentum, dropout=0.0)
    alone.train(batches(outlier=outlier))
    assert not math.isfinite(alone.losses[-1]), "without us the run is lost"
    watch = watching(policy="balanced")
    loop = Loop(momentum=momentum, dropout=0.0)
    loop.train(batches(outlier=outlier))
    (log,) = watch.ledger.log
    refused = [step for incident in log.incidents for step in range(incident.first_step, incident.last_step + 1)]
    reason = log.incidents[0].decision.reason
    assert len(refused) == 6, refused
    assert f"step {AT}, after which no batch had a usual loss, was left out" in reason
    reference = Loop(momentum=momentum, dropout=0.0)
    reference.train(batches(without=[*range(AT, refused[0]), *refused]))
    assert differing(loop.state(), reference.state()) == []
    assert watch.barrier.faults == {}


def test_bad_losses_in_a_row_under_good_weights_undo_nothing(watching: Any) -> None:
    bad = range(AT, AT + 9)
    reference = Loop()
    reference.train(batches(without=bad))
    watch = watching(policy="balanced")
    loop = Loop()
    loop.train(batches(), bad=bad)
    assert differing(loop.state(), reference.state()) == []
    (log,) = watch.ledger.log
    assert all("restored" not in incident.decision.reason for incident in log.incidents)
    assert len(loop.losses) == STEPS, "what the loop keeps is its own"
    assert watch.barrier.faults == {}


def test_a_rate_that_is_far_too_high_ends_with_weights_that_have_a_loss(watching: Any) -> None:
    watching(policy="balanced")
    loop = Loop(rate=1e4)
    with pytest.raises(TrainingHalted):
        loop.train(batches() * 20)
    loop.model.eval()
    x, y = batches()[0]
    assert math.isfinite((loop.model(x) - y).square().mean().item())


def test_lines_that_leave_a_trace_elsewhere_are_not_run_again(watching: Any) -> None:
    asked = queue.Queue[int]()

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Loop(dropout=0.0).model

        def forward(self, x: Tensor) -> Tensor:
            asked.put(1)
            return self.body(x)  # type: ignore[no-any-return]

    watching(policy="balanced")
    loop = Loop(dropout=0.0)
    loop.model = Asking()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.05)
    with contextlib.suppress(TrainingHalted):
        loop.train(batches(outlier=1e15))
    assert asked.qsize() == len(loop.losses)
