"""Finite weights that give nothing finite any more: `sg.attach(optimizer, model=model)` goes back to its last copy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

STEPS, AT = 60, 30


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    body = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)]
    model = nn.Sequential(*body)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def batches(outlier: float | None = None) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    made = [(torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(STEPS)]
    if outlier is not None:
        made[AT][1][3] = outlier
    return made


def train(model: nn.Module, optimizer: Any, data: list[tuple[Tensor, Tensor]], bad: Iterable[int] = ()) -> Tensor:
    for number, (x, y) in enumerate(data):
        loss = (model(x) - y).square().mean()
        if number in bad:
            loss = loss * math.nan
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def test_after_a_sample_that_is_far_too_large_the_run_goes_on_from_the_last_copy() -> None:
    model, optimizer = parts()
    assert not math.isfinite(train(model, optimizer, batches(outlier=1e15))), "without us the run is lost"
    model, optimizer = parts()
    with sg.attach(optimizer, model=model) as guard:
        loss = train(model, optimizer, batches(outlier=1e15))
        assert guard.summary()["rolled_back"] == 1
    assert float(loss) < 10.0
    assert any("updates since are lost" in incident.decision.reason for incident in guard.incidents)


def test_bad_losses_in_a_row_under_good_weights_undo_nothing() -> None:
    bad = range(AT, AT + 9)
    model, optimizer = parts()
    train(model, optimizer, [batch for number, batch in enumerate(batches()) if number not in bad])
    guarded, other = parts()
    with sg.attach(other, model=guarded) as guard:
        train(guarded, other, batches(), bad)
        assert (guard.summary()["skipped"], guard.summary()["rolled_back"]) == (9, 0)
    assert all(map(torch.equal, model.state_dict().values(), guarded.state_dict().values()))


def test_without_the_model_there_is_no_copy_and_ten_bad_steps_in_a_row_halt() -> None:
    model, optimizer = parts()
    with sg.attach(optimizer), pytest.raises(sg.TrainingHalted):
        train(model, optimizer, batches(outlier=1e15))
