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
    (incident,) = [incident for log in watch.ledger.log for incident in log.incidents]
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


def perturb(noise: torch.Generator, steps: int) -> nn.Module:
    """Trains without backward: the gradient is a weighted sum of noise, written by hand."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad():
        for step in range(steps):
            directions = torch.randn(4, 4, generator=noise)
            scores = [0.5 if step == 3 else float(direction.sum()) for direction in directions]
            gains = torch.tensor(scores)
            gains = gains / (gains - gains.mean()).abs().sum()
            total, at = (gains[:, None] * directions).sum(0), 0
            for parameter in model.parameters():
                parameter.grad = total[at : at + parameter.numel()].view_as(parameter).clone()
                at += parameter.numel()
            optimizer.step()
    return model


def test_a_gradient_that_no_backward_made_is_located_where_it_was_written(watching: Any) -> None:
    watch = watching(diagnose="auto")
    noise = torch.Generator().manual_seed(2)
    perturb(noise, 6)
    found = only_diagnosis(watch)
    assert (found.cause.slug, found.origin.op) == ("zero_division", "div")
    assert found.origin.code_line == "gains = gains / (gains - gains.mean()).abs().sum()"
    plain = torch.Generator().manual_seed(2)
    for _ in range(6):
        torch.randn(4, 4, generator=plain)
    assert torch.equal(noise.get_state(), plain.get_state())  # nothing was drawn a second time
