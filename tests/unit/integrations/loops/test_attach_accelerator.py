"""sg.attach(accelerator): a loop of the user's own around an Accelerator, left as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg
from steadygrad.testing.fault_kinds import Flip, flip_bits

accelerate = pytest.importorskip("accelerate")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        return {"loss": ((out - y) ** 2).mean()}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(48, 8, generator=generator), torch.randn(48, 1, generator=generator)


def loss_outside(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(*batch)["loss"] * 1.0
    return loss


@pytest.fixture(autouse=True)
def _no_shared_state() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(inputs: Tensor, targets: Tensor, accumulate: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4)
    return (accelerator, *accelerator.prepare(model, optimizer, scheduler, loader))


def train(
    inputs: Tensor, targets: Tensor, *, accumulate: int, outside: bool, flip_at: int | None = None, **options: Any
) -> tuple[Any, Any]:
    accelerator, model, optimizer, scheduler, loader = prepared(inputs, targets, accumulate)
    guard = sg.attach(accelerator, **options) if options else None
    for number, batch in enumerate(loader):
        if number == flip_at:
            flip_bits(model.first.weight, Flip(place=20, mask=1 << 28))
        with accelerator.accumulate(model):
            loss = loss_outside(model, batch) if outside else model(*batch)["loss"]
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    if guard is not None:
        guard.close()
    epoch = torch.tensor(scheduler.scheduler.last_epoch)
    return guard, [*model.state_dict().values(), *moments, epoch]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("outside", [False, True])
def test_a_flipped_weight_is_restored(accumulate: int, outside: bool) -> None:
    options: dict[str, Any] = {"loss_fn": loss_outside} if outside else {"policy": "balanced"}
    _, healthy = train(*data(), accumulate=accumulate, outside=outside)
    guard, end = train(*data(), accumulate=accumulate, outside=outside, flip_at=6, **options)
    assert all(torch.equal(a, b) for a, b in zip(end, healthy, strict=True))
    assert [found.code for incident in guard.incidents for found in incident.findings] == ["SY415"]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loss_from", ["the model", "loss_fn", "the loop"])
def test_a_poisoned_batch_leaves_no_trace(accumulate: int, loss_from: str) -> None:
    inputs, targets = data()
    bad = inputs.clone()
    bad[4 * 5 + 2, 3] = math.nan
    kept = [row for row in range(48) if row // 4 // accumulate != 5 // accumulate]
    outside = loss_from != "the model"
    _, wanted = train(inputs[kept], targets[kept], accumulate=accumulate, outside=outside)
    options: dict[str, Any] = {"loss_fn": loss_outside} if loss_from == "loss_fn" else {"policy": "balanced"}
    guard, found = train(bad, targets, accumulate=accumulate, outside=outside, **options)
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    (incident,) = guard.incidents
    assert guard.summary()["guard_faults"] == {}
    # A loss that is only multiplied by a constant in the loop is still the model's own.
    assert (incident.diagnosis.cause.slug, incident.diagnosis.rows) == ("bad_input", (2,))


def test_a_loss_with_a_term_of_the_loops_own_is_refused_and_not_diagnosed() -> None:
    inputs, targets = data()
    inputs[4 * 5 + 2, 3] = math.nan
    accelerator, model, optimizer, _, loader = prepared(inputs, targets, 1)
    guard = sg.attach(accelerator, policy="balanced")
    for batch in loader:
        accelerator.backward(model(*batch)["loss"] + model.first.weight.square().sum())
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    (incident,) = guard.incidents
    assert incident.diagnosis is None  # only the loop could run it again
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


class Split(nn.Module):
    """Two parts that the loop calls by a method, with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.between = nn.Dropout(0.2)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))


def in_parts(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model["second"](torch.tanh(model["first"](x)))


def by_vmap(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Each row with weights that were moved along its own gradient, as meta-learning does."""

    def loss_of(weights: Any, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (row,)).square().mean()

    def adapted(row: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())
        slopes = torch.func.grad(loss_of)(weights, row)
        return torch.func.functional_call(model, {name: w - 0.1 * slopes[name] for name, w in weights.items()}, (row,))

    return torch.func.vmap(adapted)(x)


def with_other_weights(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(model, {name: 0.9 * w for name, w in model.named_parameters()}, (x,))


BY_FUNCTION = {"by vmap and grad": by_vmap, "with other weights": with_other_weights}


@pytest.mark.parametrize("called", ["its parts", "a method", "itself, and backward by the loss", *BY_FUNCTION])
def test_a_loop_that_never_calls_the_model_or_the_accelerators_backward_is_guarded(called: str) -> None:
    torch.manual_seed(0)
    if called == "its parts":
        model: Any = nn.ModuleDict({"first": nn.Linear(4, 8), "second": nn.Linear(8, 1)})
        call: Any = in_parts
    else:
        model = Split() if called == "a method" else nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        call = (lambda model, x: model.score(x)) if called == "a method" else (lambda model, x: model(x))
    if called in BY_FUNCTION:
        model, call = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), BY_FUNCTION[called]
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    batches = torch.randn(8, 6, 4, generator=torch.Generator().manual_seed(1))
    batches[3, 2, 1] = math.nan
    guard = sg.attach(accelerator)
    for x in batches:
        loss = call(model, x).square().mean()
        if called == "itself, and backward by the loss":
            loss.backward()
        else:
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    summary = guard.summary()
    assert (summary["steps"], summary["skipped"], summary["first_bad_step"]) == (8, 1, 3)
    assert [incident.decision.step for incident in guard.incidents] == [3]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    assert summary["guard_faults"] == {}


def test_after_close_the_accelerator_is_as_it_was() -> None:
    inputs, targets = data()
    accelerator, model, optimizer, _, _ = prepared(inputs, targets, 1)
    kinds, hooks = (type(accelerator), type(optimizer)), len(model._forward_hooks)
    guard = sg.attach(accelerator)
    assert type(accelerator) is not kinds[0]
    guard.close()
    assert (type(accelerator), type(optimizer)) == kinds
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == (hooks, 0)
    sg.attach(accelerator).close()


def test_an_accelerator_attached_twice_or_too_early_is_refused_in_a_sentence() -> None:
    with pytest.raises(sg.UsageError, match=r"after accelerator\.prepare"):
        sg.attach(accelerate.Accelerator(cpu=True))
    accelerator, *_ = prepared(*data(), 1)
    with sg.attach(accelerator), pytest.raises(sg.UsageError, match="already"):
        sg.attach(accelerator)
