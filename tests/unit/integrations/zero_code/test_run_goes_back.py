"""A step that went wrong between two weights: inside an optimizer's step, or many updates before it showed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


def diagnoses(watch: Any) -> list[Any]:
    assert watch.barrier.faults == {}
    return [incident.diagnosis for log in watch.ledger.log for incident in log.incidents]


def slugs(found: Any) -> set[str]:
    return {trial.remedy.slug for trial in found.remedies}


class Gain(nn.Module):
    """Normalises, draws a little noise and multiplies by a gain that must stay above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gain = nn.BatchNorm1d(2, affine=False), nn.Parameter(torch.tensor([0.2, 0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + 1e-3 * torch.randn_like(x)).abs() * self.gain + 0.01


def test_a_bad_evaluation_in_the_middle_of_a_step_is_diagnosed_at_its_own_weights(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model, x = Gain(), torch.randn(16, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=3.0, max_iter=6)
    trials: list[list[float]] = []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    returned = []
    for _ in range(1):

        def closure() -> Tensor:
            optimizer.zero_grad()
            trials.append(model.gain.tolist())
            loss = -model(x).sqrt().mean() + 40.0 * model.gain.sum()
            loss.backward()
            return loss

        returned.append(optimizer.step(closure))
    (found,) = diagnoses(watch)
    assert len(trials) > 1, "the first evaluation is good"
    assert min(trials[-1]) < 0, "the last one is where the gain has left its range"
    assert (found.origin.op, found.phase) == ("sqrt", "loss")
    assert found.origin.code_line == "loss = -model(x).sqrt().mean() + 40.0 * model.gain.sum()"
    assert {"eps", "clamp"} & slugs(found)
    # As if the step had never been: neither the trial weights nor what the evaluations moved are left.
    assert torch.isfinite(returned[0])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_run_that_climbed_away_long_ago_is_tried_at_a_lower_rate_from_before_that(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    weights: list[Tensor] = []
    for step in range(60):
        for group in optimizer.param_groups:
            group["lr"] = 0.12 * (step + 1)
        x = torch.randn(16, 4)
        loss = (model(x).squeeze(1) - x.square().sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        weights = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        if any(log.ledger.skipped for log in watch.ledger.log):
            break
    found = diagnoses(watch)[-1]  # the sampled checks may have warned before
    assert step > 8, "it takes more steps than a trial would go back without a copy"
    assert found.cause.slug == "lr_divergence"
    assert "lr_down" in slugs(found)
    assert optimizer.param_groups[0]["lr"] == 0.12 * (step + 1), "the rate is the program's again"
    assert all(torch.equal(now, kept) for now, kept in zip(model.parameters(), weights, strict=True))


class Cells(nn.Module):
    """Keeps the mean of what fell into each of its cells: of an empty one that is 0 / 0, and no loss shows it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x) + self.mean.sum()
        cells = torch.stack([x[:, 0] > 0, x[:, 0] <= 0]).float()
        with torch.no_grad():
            self.mean.copy_((cells @ x[:, 1]) / cells.sum(1))
        return out


@pytest.mark.parametrize("empty", [0, 4])
def test_a_buffer_that_the_step_before_left_bad_is_located_in_that_step(watching: Any, empty: int) -> None:
    """Also in the very first one, at which the optimizer is not known yet."""
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = Cells()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(empty + 2):
        x = torch.randn(8, 4)
        x = x.abs() if step == empty else x
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = diagnoses(watch)[-1]
    assert (found.cause.slug, found.origin.op, found.origin.phase) == ("zero_division", "div", "forward")
    assert found.origin.code_line == "self.mean.copy_((cells @ x[:, 1]) / cells.sum(1))"
    assert "eps" in slugs(found)


class Scaled(nn.Module):
    """Multiplies its features by numbers that the program reads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.scale)


def test_a_buffer_that_the_program_made_infinite_is_named_and_tried_as_it_was(watching: Any) -> None:
    """Plus infinities among finite numbers are no mask, although they reach the product before they are a NaN."""
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.randn(8, 4)
        if step == 5:
            model.scale.copy_(torch.tensor([1.0, float("inf"), 1.0, 1.0]))
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = diagnoses(watch)[-1]
    assert (found.cause.slug, found.origin.phase, found.origin.tensor) == ("poisoned_state", "state", "scale")
    assert "restore_buffers" in slugs(found)
