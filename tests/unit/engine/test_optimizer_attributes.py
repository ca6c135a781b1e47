"""What an optimizer of the user's own keeps in its attributes is undone with the update, and kept by snapshots."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.state.forward_state import ForwardState
from steadygrad.engine.state.training_state import TrainingState, copy_tree
from steadygrad.engine.step.trained_parameters import attributes_of
from steadygrad.integrations.zero_code.launch.run_options import RunOptions
from steadygrad.integrations.zero_code.process_loop import ProcessLoop


class MeanScaled(torch.optim.Optimizer):
    """Divides by a mean over all steps, which it keeps in an attribute that it binds anew each time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.mean, self.count, self.seen = torch.tensor(0.0), 0, [torch.zeros(())]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        size = torch.stack([gradient.norm() for gradient in gradients]).sum()
        self.count += 1
        self.mean = self.mean + (size / size.sign() - self.mean) / self.count
        self.seen.append(size)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / self.mean)


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    data = [torch.rand(4, 3, generator=generator) for _ in range(6)]
    data[2].zero_()  # no gradient at all: zero over zero
    return data


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * x.sum()).square().mean()  # type: ignore[no-any-return]


def model_and_optimizer() -> tuple[nn.Module, MeanScaled]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, MeanScaled(model.parameters())


def as_if_left_out() -> tuple[nn.Module, MeanScaled]:
    model, optimizer = model_and_optimizer()
    for index, x in enumerate(batches()):
        if index != 2:
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    return model, optimizer


def same(one: tuple[nn.Module, MeanScaled], other: tuple[nn.Module, MeanScaled]) -> bool:
    weights = zip(one[0].parameters(), other[0].parameters(), strict=True)
    a, b = one[1], other[1]
    kept = torch.equal(a.mean, b.mean) and a.count == b.count and len(a.seen) == len(b.seen)
    return kept and all(torch.equal(p, q) for p, q in weights)


def test_a_guard_undoes_them_with_the_update_that_made_them_bad() -> None:
    model, optimizer = model_and_optimizer()
    with sg.Guard(model, optimizer, loss_fn=loss_of) as guard:
        for x in batches():
            guard.step(x)
        assert guard.summary()["skipped"] == 1
        found = guard.incidents[0].diagnosis
    assert (found.cause.slug, found.origin.phase) == ("zero_division", "optimizer")
    assert same((model, optimizer), as_if_left_out())


def test_so_does_a_program_that_is_run() -> None:
    expected = as_if_left_out()
    watch = ProcessLoop(RunOptions(diagnose="off"))
    watch.start()
    try:
        model, optimizer = model_and_optimizer()
        for x in batches():
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    finally:
        watch.finish()
        watch.stop()
    assert same((model, optimizer), expected)


@pytest.mark.parametrize("kind", [MeanScaled, torch.optim.SGD])
def test_its_parameters_and_torchs_own_optimizers_are_left_out(kind: type) -> None:
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters())
    optimizer.mine = list(model.parameters())
    state = TrainingState(parameters={}, optimizers=[optimizer], forward=ForwardState([model]))
    tree = copy_tree(state.live(), Tensor.clone)["optimizers"][0]
    assert set(tree["attributes"]) == ({"mean", "count", "seen"} if kind is MeanScaled else set())


def test_a_history_that_grows_is_not_copied_with_each_snapshot() -> None:
    _, optimizer = model_and_optimizer()
    optimizer.seen = [torch.zeros(())] * 2000
    assert set(attributes_of(optimizer)) == {"mean", "count"}


class Ascending(torch.optim.Optimizer):
    """Takes its gradient at the weights further up, as SAM does; an optimizer that it keeps makes the update."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in parameters]
        for p in parameters:
            p.add_(p.grad, alpha=0.05)
        with torch.enable_grad():
            closure()
        for p, weights in zip(parameters, before, strict=True):
            p.copy_(weights)
        self.base.step()


def ascend(entry_point: str) -> list[float]:
    """Weights and moments after six batches, the fourth of them bad, or left out where nothing guards."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    watch = ProcessLoop(RunOptions(diagnose="off")) if entry_point == "run" else None
    if watch is not None:
        watch.start()
    optimizer = Ascending(model.parameters())
    attached = sg.attach(optimizer, model=model) if entry_point == "attach" else None
    for step, batch in enumerate(torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1))):
        if step == 3 and entry_point == "none":
            continue
        x = batch * torch.nan if step == 3 else batch

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().mean()
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)
    if watch is not None:
        watch.finish()
        watch.stop()
    if attached is not None:
        attached.close()
    moments = optimizer.base.state[model.weight]["momentum_buffer"]
    return [*model.weight.flatten().tolist(), *moments.flatten().tolist()]


@pytest.mark.parametrize("entry_point", ["attach", "run"])
def test_the_moments_of_an_optimizer_within_an_optimizer_are_undone_with_it(entry_point: str) -> None:
    assert ascend(entry_point) == ascend("none")
