"""A step that went wrong between two weights: inside an optimizer's step, or many updates before it showed."""

from __future__ import annotations

from typing import Any

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
