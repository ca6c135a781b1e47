"""A guard says at its start what the doctor sees in the live objects, and nothing where there is nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from specimens import make_guard, setup
from torch import nn

import steadygrad as sg
from steadygrad.journal import read_events


def test_weights_trained_in_half_precision_are_told_at_the_start_and_journaled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sg.Guard(model, optimizer, lambda m, b: m(b).float().mean(), run_dir=tmp_path / "run"):
        assert [record.getMessage().split()[0] for record in caplog.records] == ["PF101"]
    (event,) = [event for event in read_events(tmp_path / "run") if event.kind == "checkup"]
    assert event.data["code"] == "PF101"
    assert event.data["help"]


def test_a_healthy_setup_is_met_with_silence(caplog: pytest.LogCaptureFixture) -> None:
    it = setup()
    with caplog.at_level(logging.WARNING), make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0):
        assert caplog.records == []


def test_a_doctor_that_breaks_does_not_keep_a_guard_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("steadygrad.checkup.live_objects.glance", broken)
    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn) as guard:
        assert guard.summary()["guard_faults"] == {"checkup": 1}


def test_an_attached_optimizer_says_it_too(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 1).half()
    with sg.attach(torch.optim.SGD(model.parameters(), lr=1e-2), model=model):
        assert [record.getMessage().split()[0] for record in caplog.records] == ["PF101", "sg.attach(optimizer)"]
