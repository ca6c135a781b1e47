"""State that came in bad is named as such, and a logarithm in a backward of the program's own is a logarithm."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.integrations.zero_code.launch.run_options import RunOptions
from steadygrad.integrations.zero_code.process_loop import ProcessLoop


class Saturation(nn.Module):
    def __init__(self, scale: list[float]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.head = nn.Linear(len(scale), 1)

    def forward(self, x: Tensor) -> Tensor:
        load = x.abs() * self.scale
        return self.head(load / (load + 1.0))  # type: ignore[no-any-return]


class Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        ctx.save_for_backward(p)
        return torch.xlogy(p, p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return gradients[0] * (p.log() + 1)


def first_diagnosis(model: nn.Module, loss: Any, data: list[Tensor], between: Any = lambda step: None) -> Any:
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn=loss) as guard:
        for step, batch in enumerate(data):
            between(step)
            guard.step(batch)
        return guard.incidents[0].diagnosis


def test_a_buffer_that_overflowed_before_the_step_is_bad_state_and_no_mask() -> None:
    torch.manual_seed(0)
    model = Saturation([1.0, 2.0, 3.0])
    data = [torch.rand(4, 3) + 0.1 for _ in range(6)]

    def load(step: int) -> None:
        if step == 3:
            model.scale[1] = torch.inf  # type: ignore[index,operator]  # what a checkpoint that was narrowed leaves

    found = first_diagnosis(model, lambda m, x: m(x).square().mean(), data, load)
    assert (found.cause.slug, found.origin.phase, found.origin.tensor) == ("poisoned_state", "state", "scale")


def test_a_logarithm_of_zero_in_the_programs_own_backward_is_called_one() -> None:
    torch.manual_seed(0)
    data = [torch.rand(4, 3) + 0.1 for _ in range(5)]
    data[2][1] = 0.0

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return Entropy.apply(m(x).exp() * x).sum()  # type: ignore[no-any-return,no-untyped-call]

    model = nn.Linear(3, 3)
    found = first_diagnosis(model, loss, data)
    assert (found.cause.slug, found.origin.op) == ("log_zero", "log")
    assert found.origin.code_line == "return gradients[0] * (p.log() + 1)"


@pytest.fixture
def watch() -> Any:
    started = ProcessLoop(RunOptions(diagnose="auto"))
    started.start()
    yield started
    started.finish()
    started.stop()


def test_a_teacher_that_no_optimizer_trains_is_named_when_it_went_bad(watch: Any) -> None:
    student = nn.Linear(3, 2)
    average = SimpleNamespace(model=copy.deepcopy(student).requires_grad_(False))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for step in range(5):
        x = torch.ones(4, 3) * step
        loss = (student(x) - average.model(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 2:
            average.model.bias.mul_(torch.nan)
    (log,) = watch.ledger.log
    found = log.incidents[0].diagnosis
    assert (found.cause.slug, found.origin.tensor) == ("poisoned_state", "average.model.bias")


def test_weights_that_are_huge_since_the_learning_rate_jumped_are_named_after_the_rate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(14)]
    with sg.Guard(model, optimizer, lambda m, b: (m(b[0]) - b[1]).square().mean()) as guard:
        for number, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = 1e30 if number == 8 else 0.01
            guard.step(batch)
        found = guard.incidents[0].diagnosis
    assert found is not None
    assert found.cause is not None
    assert (found.cause.slug, found.origin.phase) == ("lr_divergence", "optimizer")
    assert "jumped from 0.01 to 1e+30" in found.because
