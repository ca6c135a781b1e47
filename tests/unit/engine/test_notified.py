"""`notify=` on a guard: told once of each incident, with what the clinic found, and never in the way."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import batches, make_guard, setup
from torch import Tensor

import steadygrad as sg


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def test_each_incident_is_told_once_with_its_diagnosis() -> None:
    told: list[dict[str, Any]] = []
    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn, notify=told.append, diagnose="auto") as guard:
        for batch in batches(3):
            guard.step(batch)
        guard.step(nan_batch())
        guard.step(nan_batch())  # the same incident goes on
        for batch in batches(3):
            guard.step(batch)
        guard.step(nan_batch())
        numbers = [incident.number for incident in guard.incidents]
    assert [payload["incident"]["number"] for payload in told] == numbers
    assert len(told) == 2
    assert told[0]["incident"]["diagnosis"]["cause"]["slug"] == "bad_input"


def test_a_command_gets_the_incident_as_json(tmp_path: Path) -> None:
    received = tmp_path / "received.json"
    program = f"import sys, pathlib; pathlib.Path({str(received)!r}).write_bytes(sys.stdin.buffer.read())"
    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn, notify=[sys.executable, "-c", program]) as guard:
        guard.step(nan_batch())
    assert json.loads(received.read_text())["incident"]["symptom"] == "nan_loss"


def test_a_receiver_that_fails_does_not_touch_training() -> None:
    def broken(payload: dict[str, Any]) -> None:
        raise OSError("nobody there")

    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn, notify=broken) as guard:
        guard.step(nan_batch())
        outcome = guard.step(next(iter(batches(1))))
        assert outcome.applied
    assert all(bool(torch.isfinite(p).all()) for p in it.model.parameters())


def test_what_cannot_be_notified_is_refused_in_a_sentence() -> None:
    it = setup()
    with pytest.raises(sg.UsageError, match="notify"):
        sg.Guard(it.model, it.optimizer, it.loss_fn, notify=3)
