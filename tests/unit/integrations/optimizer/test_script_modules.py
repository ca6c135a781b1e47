"""A model that is a ScriptModule: it takes no hooks."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn, optim

import steadygrad as sg


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_model_is_guarded_as_one_that_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING), sg.attach(optimizer, model=model) as guard:
        for value in (1.0, math.nan, 2.0):
            optimizer.zero_grad()
            model(torch.full((4, 3), value)).sum().backward()
            optimizer.step()
    assert guard.summary()["skipped"] == 1
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    assert "model=" in caplog.text
