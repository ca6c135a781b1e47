"""Why a step was refused, in a program whose loop cannot be run again, and what is honestly said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class LogInside(nn.Module):
    """Takes the logarithm of a number that may be zero, two floors down."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.part = nn.ModuleDict({"log": Log()})

    def forward(self, x: Tensor) -> Tensor:
        return self.part["log"](self.body(x).relu() + x.abs())  # type: ignore[no-any-return]


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.0 + x).log() * 0.0 + x


def finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def loop(model: nn.Module, data: list[Tensor], loss_of: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in data:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    assert finite(model)


def only_calls(watch: Any) -> Any:
    """As where the loop's source is not at hand: only the model's calls can be made again."""
    watch.slices.backward_begins = lambda loss: None
    return watch


def diagnoses(watch: Any) -> list[Any]:
    assert watch.barrier.faults == {}
    return [incident.diagnosis for log in watch.ledger.log for incident in log.incidents]


def good(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(4, 3, generator=generator) + 0.5 for _ in range(count)]


def with_zeros() -> Tensor:
    x = good(1)[0].clone()
    x[2] = 0.0
    return x


def test_a_value_that_turns_bad_inside_the_model_is_located_by_making_the_call_again(watching: Any) -> None:
    watch = only_calls(watching(diagnose="auto"))
    torch.manual_seed(0)
    model = LogInside()
    nn.init.constant_(model.body.weight, -1.0)
    nn.init.zeros_(model.body.bias)
    loop(model, [*good(2), with_zeros(), *good(1)], lambda m, x: m(x).pow(2).mean())
    (found,) = diagnoses(watch)
    assert found.cause.slug == "log_zero"
    assert found.origin.op == "log"
    assert found.origin.module == "part.log"
    assert "test_run_diagnosis.py" in found.origin.source
    assert found.origin.code_line == "return (x * 0.0 + x).log() * 0.0 + x"
    assert found.rows == (2,)
    assert any("the code from its output to the loss was not" in note for note in found.notes)
    assert found.trials == ()  # nothing is called verified that was not replayed


def entropy(model: nn.Module, x: Tensor) -> Tensor:
    p = model(x).relu() * x[:, :1]
    return -(p * p.log()).mean()  # 0 * log(0)


def test_trouble_in_the_loss_code_is_said_to_lie_there_and_located_when_it_comes_back(watching: Any) -> None:
    watch = only_calls(watching(diagnose="auto"))
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, 0.1)
    loop(model, [*good(2), with_zeros(), *good(1), with_zeros(), *good(1)], entropy)
    first, second = diagnoses(watch)
    assert first.phase == "loss"
    assert first.origin.op == "log"
    assert first.cause is None  # a hint by what autograd kept; no cause is claimed
    assert "made a bad value from inputs between 0 and" in first.because
    assert any("its output is finite" in note for note in first.notes)
    assert any("test_run_diagnosis.py" in note and "(backward)" in note for note in first.notes)
    assert second.origin.op == "log"
    assert second.cause.slug == "log_zero"
    assert second.origin.code_line == "return -(p * p.log()).mean()  # 0 * log(0)"
    assert second.origin.module is None
    assert any("while it ran" in note for note in second.notes)


def test_tracing_the_next_steps_does_not_change_a_bit(watching: Any) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Softplus())
        loop(model, [*good(1), *good(4)], entropy)
        return [p.detach().clone() for p in model.parameters()]

    alone = run()
    watch = watching(diagnose="auto")
    watch.examiner._traced_steps = 3
    watch.examiner._loop = None
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Softplus())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, x in enumerate([*good(1), *good(4)]):
        optimizer.zero_grad()
        entropy(model, x).backward()
        optimizer.step()
        if number == 0:
            watch.examiner._loop = watch.ledger.loops[0]
    assert watch.examiner._traced_steps == 0
    assert all(torch.equal(a, p.detach()) for a, p in zip(alone, model.parameters(), strict=True))


class Root(nn.Module):
    """The gradient of a square root at zero is infinite; the loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) * 0.0).square().sum(1).sqrt()


def test_a_gradient_that_turns_bad_in_the_models_backward_is_replayed_from_what_came_back(watching: Any) -> None:
    watch = watching(diagnose="auto")
    model = Root()
    loop(model, good(1), lambda m, x: (m(x) - 1.0).pow(2).mean())
    (found,) = diagnoses(watch)
    assert found.symptom == "nan_grad"
    assert found.phase == "backward"
    assert found.origin.op == "sqrt"
    assert found.cause.slug == "sqrt_grad_at_zero"


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class OwnLoss(nn.Module):
    """Returns its loss, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Output:
        logits = self.head(x)
        weights = (labels >= 0).float()
        each = nn.functional.cross_entropy(logits, labels.clamp(min=0), reduction="none")
        return Output((each * weights).sum() / weights.sum(), logits)


def test_a_model_that_computes_its_own_loss_is_diagnosed_in_full(watching: Any) -> None:
    watch = only_calls(watching(diagnose="auto"))
    torch.manual_seed(0)
    model = OwnLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.tensor([0, 1, 2, 3])
    for number, x in enumerate(good(4)):
        optimizer.zero_grad()
        out = model(x, labels=torch.full_like(labels, -1) if number == 2 else labels)
        (out.loss / 2).backward()
        optimizer.step()
    assert finite(model)
    (found,) = diagnoses(watch)
    assert found.origin.op == "div"
    assert found.cause.slug in ("zero_division", "empty_reduction")
    assert found.remedies  # tried on the call itself
    assert any("its loss is the model's own" in note for note in found.notes)


def test_weights_that_are_bad_already_are_named(watching: Any) -> None:
    watch = watching(diagnose="auto")
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad():
        model[1].bias.fill_(math.nan)  # type: ignore[operator,union-attr]
    model(good(1)[0]).sum().backward()
    with pytest.raises(sg.TrainingHalted, match="start again from a good checkpoint"):
        optimizer.step()
    (found,) = diagnoses(watch)
    assert found.phase == "state"
    assert found.origin.tensor == "1.bias"


def test_arguments_that_were_overwritten_are_not_replayed_and_that_is_said(watching: Any) -> None:
    watch = watching(diagnose="auto")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scratch = torch.zeros(4, 3)
    scratch.copy_(good(1)[0])
    loss = model(scratch.mul(1.0)).sum()
    call = watch.models.calls[-1]
    call.args[0].zero_()  # nothing of it is needed for backward but by the model's weight
    loss = loss * math.nan
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.step()
    (found,) = diagnoses(watch)
    assert "nothing was replayed: the model's arguments were written to after the call" in found.notes


def test_a_refused_steps_gradients_are_still_there_for_the_programs_own_logs(watching: Any) -> None:
    watching(diagnose="auto")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = good(1)[0].clone()
    x[0, 0] = math.nan
    model(x).sum().backward()
    before = model.weight.grad
    optimizer.step()
    assert model.weight.grad is before


# -- errors that never mention the NaN behind them


def raised(call: Any) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def test_an_error_one_line_after_a_nan_names_the_nan(watching: Any) -> None:
    """`all elements of input should be between 0 and 1`, says torch, and means a NaN."""
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = LogInside()
    nn.init.constant_(model.body.weight, -1.0)
    nn.init.zeros_(model.body.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        probability = model(with_zeros()).sigmoid()
        nn.functional.binary_cross_entropy(probability, torch.ones(4, 3))

    error = raised(step)
    assert "NaN" not in str(error)
    watch.crashed(error)
    (note,) = error.__notes__
    assert "`probability`" in note
    assert "NaN among its 12 values" in note
    assert "made by log" in note
    assert "test_run_diagnosis.py" in note


def test_an_error_inside_the_model_names_the_nan_too(watching: Any) -> None:
    class Sampling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            weights = self.head(x).abs() / x.sum(1, keepdim=True)
            return torch.multinomial(weights * 0.0 + weights, 1)

    watch = watching(diagnose="auto")
    model = Sampling()
    nn.init.zeros_(model.head.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    error = raised(lambda: model(with_zeros()))
    watch.crashed(error)
    assert optimizer is not None  # the model of a program that trains
    (note,) = error.__notes__
    assert "`weights`" in note
    assert "made by div" in note


def test_an_error_about_a_singular_matrix_names_the_line_although_nothing_is_nan(watching: Any) -> None:
    class Whitening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.head(x)
            return hidden @ torch.linalg.inv(hidden.T @ hidden)

    watch = watching(diagnose="auto")
    model = Whitening()
    nn.init.zeros_(model.head.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    error = raised(lambda: model(torch.zeros(4, 3)))
    watch.crashed(error)
    assert optimizer is not None
    (note,) = error.__notes__
    assert "linalg_inv_ex" in note
    assert "test_run_diagnosis.py" in note
    assert "singular" in note
    assert "NaN" not in note


def test_an_error_that_has_nothing_to_do_with_numbers_is_left_as_it_is(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(3, 1)
    torch.optim.SGD(model.parameters(), lr=0.01)
    model(good(1)[0])
    error = raised(lambda: {}["missing"])
    watch.crashed(error)
    assert not hasattr(error, "__notes__")
    assert watch.barrier.faults == {}


# -- by the loop's own lines


def test_trouble_in_the_loss_code_is_located_and_remedied_by_running_the_loop_s_lines_again(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[float] = []
    for x in [*good(3), with_zeros(), *good(1)]:
        optimizer.zero_grad()
        out = model(x)
        share = x / x.sum(dim=-1, keepdim=True)
        loss = (out.sum(dim=-1, keepdim=True) * share).pow(2).mean()
        seen.append(loss.item())
        loss.backward()
        optimizer.step()
    assert finite(model)
    assert len(seen) == 5  # what the loop does for its effect was not done again
    (found,) = diagnoses(watch)
    assert (found.phase, found.origin.op, found.cause.slug, found.rows) == ("loss", "div", "zero_division", (2,))
    assert found.origin.code_line == "share = x / x.sum(dim=-1, keepdim=True)"
    assert any(trial.finite for trial in found.trials)
    assert {proven.remedy.slug for proven in found.remedies} & {"eps", "clamp", "safe_denominator"}


def test_lines_that_do_not_give_the_loss_again_are_not_believed(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    numbers = iter([1.0, 2.0, math.nan, 4.0, 5.0, 6.0, 7.0])
    for x in good(5):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean() * next(numbers)  # each time another number
        loss.backward()
        optimizer.step()
    (found,) = diagnoses(watch)
    assert not any("were run again" in note for note in found.notes)
    assert found.remedies == ()


def test_accumulated_lines_under_autocast_are_run_again_as_they_ran(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [*good(5), with_zeros(), *good(2)]
    for number, x in enumerate(data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x).float()
        loss = (out * x.sum(-1, keepdim=True).log()).mean() / 2
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert finite(model)
    (found,) = diagnoses(watch)
    assert (found.origin.op, found.cause.slug, found.rows) == ("log", "log_zero", (2,))
    assert any("were run again" in note for note in found.notes)


class Parts(nn.Module):
    """A module that is never called itself, and whose optimizers are stepped as a trainer does: always with a closure,
    although the forward is long done."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(2, 3)
        self.critic = nn.Sequential(nn.Linear(3, 6), nn.ReLU6(), nn.Linear(6, 1))
        self.of_maker = torch.optim.Adam(self.maker.parameters(), lr=1e-3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=1e-3)

    def penalty(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.critic(x).sum(), x, create_graph=True)
        return (slope.pow(2).sum(1).sqrt() - 1).pow(2).mean()

    def training_step(self, x: Tensor) -> None:
        drawn = torch.randn(len(x), 2)
        loss = self.critic(self.maker(drawn).detach()).mean() - self.critic(x).mean() + self.penalty(x)
        self.update(self.of_critic, loss)
        self.update(self.of_maker, -self.critic(self.maker(drawn)).mean())

    def update(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(closure=lambda: None)


def test_parts_of_a_module_are_heard_where_every_update_gets_a_closure(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    parts, data = Parts(), good(4)
    data[3][2] = 1e6  # all units are at an end: the slope is zero there
    for x in data:
        parts.training_step(x)
    (found,) = diagnoses(watch)
    assert (found.cause.slug, found.origin.op, found.rows) == ("sqrt_grad_at_zero", "sqrt", (2,))
    assert {trial.remedy.slug for trial in found.remedies} & {"eps", "double_where"}


def update(optimizer: Any, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_lines_behind_the_graph_that_went_bad_are_no_proof_of_a_transient_fault(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for scale in (1.0, 1.0, 0.0):
        losses = [(weight * scale).square().sum().sqrt()]
        update(optimizer, losses[0])
    (found,) = diagnoses(watch)
    assert found.cause is None or found.cause.slug == "sqrt_grad_at_zero"
