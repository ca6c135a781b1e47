"""Gradients that somebody else's backward left behind: the guard knows they were there before its step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import steadygrad as sg


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_a_nan_left_in_the_gradients_is_told_as_state_and_clearing_it_helps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    data = [(torch.randn(5, 4), torch.randn(5, 1)) for _ in range(8)]
    with sg.Guard(model, torch.optim.Adam(model.parameters()), loss_fn) as guard:
        for step, batch in enumerate(data):
            if step == 5:
                model(torch.full((1, 4), math.nan)).sum().backward()  # a picture of what the model looks at
            guard.step(batch)
    (incident,) = guard.incidents
    found = incident.diagnosis
    assert found is not None
    assert found.cause is not None
    assert (incident.first_step, found.phase, found.cause.slug) == (5, "state", "poisoned_state")
    assert "zero_grad" in [trial.remedy.slug for trial in found.remedies]
    assert guard.summary()["applied"] == 7
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
    assert all(weight.grad is None for weight in model.parameters())
