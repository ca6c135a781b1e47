"""What a program does to its gradients between backward and the update is part of the step that is diagnosed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


def mean_of_parts(model: nn.Module, shares: torch.Tensor) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= shares.sum()


def train(model: nn.Module, written: list[float], target: Path | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.ones(4, 3) * (step + 1)
        shares = torch.zeros(2) if step == 5 else torch.ones(2)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if target is not None:
            target.write_text("here")
        mean_of_parts(model, shares)
        written.append(float(shares.sum()))
        optimizer.step()


def only_diagnosis(watch: Any) -> Any:
    assert watch.barrier.faults == {}
    (incident,) = [incident for loop in watch.ledger.loops for incident in loop.log.incidents]
    return incident.diagnosis


def test_a_gradient_divided_by_zero_by_the_program_is_located_in_its_own_line(watching: Any) -> None:
    watch, written = watching(diagnose="auto"), []
    train(nn.Linear(3, 1), written)
    found = only_diagnosis(watch)
    assert found.cause.slug == "zero_division"
    assert found.origin.code_line == "parameter.grad /= shares.sum()"
    assert any(trial.verified for trial in found.trials)
    assert written == [2.0] * 5 + [0.0] + [2.0] * 2  # what its lines append is not appended twice


def test_lines_that_cannot_be_run_again_leave_the_cause_open(watching: Any, tmp_path: Path) -> None:
    watch = watching(diagnose="auto")
    train(nn.Linear(3, 1), [], tmp_path / "note")
    found = only_diagnosis(watch)
    assert found.cause is None
    assert "between backward and the update" in found.because
