"""What a program does to its gradients between backward and the update is part of the step that is diagnosed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from steadygrad.integrations.zero_code.rerun.loop_lines import LoopLines


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


def write(model: nn.Module, vector: torch.Tensor) -> None:
    at = 0
    for parameter in model.parameters():
        parameter.grad = vector[at : at + parameter.numel()].view_as(parameter).clone()
        at += parameter.numel()


def by_autograd_grad(model: nn.Module, target: Path | None = None) -> None:
    """Gradients from `torch.autograd.grad`, changed and then written by a function of the program."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.ones(4, 3) * (0.0 if step == 3 else 1.0)
        gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        if target is not None:
            target.write_text("here")
        vector = torch.cat([gradient.flatten() for gradient in gradients])
        write(model, vector / x.sum())
        optimizer.step()


def test_a_function_of_the_program_is_run_again_whatever_it_is_called(watching: Any) -> None:
    watch = watching(diagnose="auto")
    by_autograd_grad(nn.Linear(3, 1))
    found = only_diagnosis(watch)
    assert (found.cause.slug, found.origin.op) == ("zero_division", "div")
    assert found.origin.code_line == "write(model, vector / x.sum())"
    assert any(trial.verified for trial in found.trials)


def test_written_gradients_are_no_transient_fault_because_the_models_calls_are_finite(
    watching: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopLines, "before_update", lambda self: iter(()))  # as where the lines cannot be run again
    watch = watching(diagnose="auto")
    by_autograd_grad(nn.Linear(3, 1))
    found = only_diagnosis(watch)
    assert found.cause is None


def test_a_graph_from_before_a_refused_update_can_still_be_used_after_it(watching: Any) -> None:
    """The generator's output is made for the discriminator's update and used again after it."""
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), nn.Linear(3, 1)
    for_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    for_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for step in range(6):
        made = generator(torch.randn(4, 2))
        spread = torch.zeros(()) if step == 3 else torch.ones(())
        loss = (critic(made.detach()) / spread).mean() + critic(torch.randn(4, 3)).square().mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        (-critic(made).mean()).backward()
        for_generator.step()
    assert only_diagnosis(watch).origin.op == "div"


# -- weights that the program's own lines write


class Ascending(torch.optim.SGD):
    """Sharpness-aware: the weights are moved uphill before the gradient that counts is computed."""

    @torch.no_grad()
    def ascend(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for parameter in parameters:
            self.state[parameter]["moved"] = parameter.grad * (0.05 / norm)
            parameter.add_(self.state[parameter]["moved"])

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter].pop("moved"))
        self.step()


def sharpness_aware(model: nn.Module, seen: list[int]) -> None:
    optimizer = Ascending(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.zeros(4, 3) if step == 4 else torch.ones(4, 3) * (step + 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.ascend()
        seen.append(step)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.descend()


def normalise(model: nn.Module, width: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(width / width.abs().max())


def projected(model: nn.Module, seen: list[int]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    width = torch.ones(2)
    for step in range(6):
        loss = model(torch.ones(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(step)
        if step == 3:
            width.zero_()
        normalise(model, width[:1])


def test_a_step_uphill_that_divides_by_a_gradient_of_zero_is_located_in_its_own_line(watching: Any) -> None:
    watch, seen = watching(diagnose="auto"), []
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.1)
    sharpness_aware(model, seen)
    found = only_diagnosis(watch)
    assert found.cause.slug == "zero_division"
    assert found.origin.code_line == 'self.state[parameter]["moved"] = parameter.grad * (0.05 / norm)'
    assert [trial.remedy.slug for trial in found.trials if trial.verified] == ["eps"]
    assert seen == list(range(6))
    assert bool(torch.isfinite(model.weight).all())


def test_weights_that_the_program_makes_bad_behind_an_update_are_located_in_its_own_line(watching: Any) -> None:
    watch, seen = watching(diagnose="origin"), []
    model = nn.Linear(3, 1)
    projected(model, seen)
    found = next(incident.diagnosis for log in watch.ledger.log for incident in log.incidents)
    assert found.cause.slug == "zero_division"
    assert found.origin.code_line == "parameter.mul_(width / width.abs().max())"
    assert seen == list(range(6))


# -- gradients of each sample by torch.func


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.hidden(x)).squeeze(-1)


def normalised(data: list[tuple[torch.Tensor, torch.Tensor]]) -> nn.Module:
    torch.manual_seed(0)
    model = Scores()
    params = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def sample_loss(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -y * torch.func.functional_call(model, p, (x.unsqueeze(0),)).squeeze(0)

    for x, y in data:
        grads = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([v.flatten(1).square().sum(1) for v in grads.values()]).sum(0).sqrt()
        factor = 1.0 / norms
        for name, p in params.items():
            scaled = grads[name] * factor.view(-1, *[1] * (grads[name].dim() - 1))
            p.grad = scaled.sum(0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_gradients_of_samples_by_a_transform_are_located_in_the_programs_own_line(watching: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    data = [(torch.rand(4, 3, generator=generator), torch.ones(4)) for _ in range(6)]
    data[3][1][2] = 0.0
    watch = watching(diagnose="auto")
    model = normalised(data)
    watch.finish()
    assert watch.barrier.faults == {}
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    (incident,) = [incident for log in watch.ledger.log for incident in log.incidents]
    found = incident.diagnosis
    assert (found.origin.code_line, found.cause.slug, found.rows) == ("factor = 1.0 / norms", "zero_division", (2,))
    assert "eps" in {trial.remedy.slug for trial in found.remedies}
