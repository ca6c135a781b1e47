"""Trainings that run at the same time in one program: what is wrong in one of them is not charged to another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

STEPS, BAD_AT = 14, 6


class Training:
    """A model with running statistics, its optimizer and its batches, one of them bad."""

    def __init__(self, seed: int, *, bad: bool = False, left_out: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.batches = [torch.randn(6, 5, generator=generator) for _ in range(STEPS)]
        if bad:
            self.batches[BAD_AT][2, 2] = torch.nan
        if left_out:
            del self.batches[BAD_AT]

    def loss(self, batch: Tensor) -> Tensor:
        return (self.model(batch) - batch.nan_to_num().sum(1, keepdim=True)).pow(2).mean()

    def parts(self) -> Iterator[None]:
        """Forward, backward and update, with a pause behind each."""
        for batch in self.batches:
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            yield
            loss.backward()
            yield
            self.optimizer.step()

    def alone(self) -> Training:
        for _ in self.parts():
            pass
        return self

    def state(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()["state"]
        return {**self.model.state_dict(), **{f"{p}.{k}": v for p, kept in moments.items() for k, v in kept.items()}}


def in_turn(trainings: list[Training]) -> None:
    waiting = [training.parts() for training in trainings]
    while waiting:
        waiting = [parts for parts in waiting if next(parts, "ended") != "ended"]


def in_threads(trainings: list[Training]) -> None:
    threads = [threading.Thread(target=training.alone) for training in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("run", [in_turn, in_threads])
@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("diagnose", ["off", "auto"])
def test_a_bad_batch_of_one_training_leaves_no_trace_in_any(
    run: Callable[[list[Training]], None], bad: int, diagnose: str, watching: Any
) -> None:
    expected = [Training(seed, bad=seed == bad, left_out=seed == bad).alone().state() for seed in range(3)]
    watch = watching(diagnose=diagnose)
    trainings = [Training(seed, bad=seed == bad) for seed in range(3)]
    run(trainings)
    for training, plain in zip(trainings, expected, strict=True):
        found = training.state()
        assert [name for name in plain if not torch.equal(found[name], plain[name])] == []
    assert watch.barrier.faults == {}
    assert [log.ledger.skipped for log in watch.ledger.log].count(1) == 1
    assert sum(len(log.incidents) for log in watch.ledger.log) == 1


def test_a_training_whose_step_is_under_way_when_the_one_at_home_ends_is_judged_once(watching: Any) -> None:
    watch = watching(diagnose="off")
    at_home, in_step = threading.Event(), threading.Event()
    parts = (training := Training(0)).parts()

    def first() -> None:
        for _ in range(4):
            next(parts)
        at_home.set()
        in_step.wait()

    def second() -> None:
        at_home.wait()
        for number, _ in enumerate(Training(1, bad=True).parts()):
            if number == 2 * BAD_AT:  # the bad batch, between its loss and backward
                in_step.set()
                threads[0].join()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    incidents = [incident for log in watch.ledger.log for incident in log.incidents]
    assert [incident.symptom for incident in incidents] == ["nan_grad"]
    assert sorted(log.ledger.skipped for log in watch.ledger.log) == [0, 1]
    assert training.optimizer.state


def test_trainings_one_after_another_in_threads_are_watched_in_full(watching: Any) -> None:
    watch = watching()
    with ThreadPoolExecutor(2) as pool:
        busy = threading.Event()
        for seed in range(2):
            pool.submit(lambda seed: Training(seed, bad=True).alone() and None, seed).result()
            pool.submit(busy.wait) if not seed else busy.set()  # the second runs in the other thread
    assert "several_trainings" not in watch.ledger.notices
    assert [log.ledger.skipped for log in watch.ledger.log] == [1, 1]


def updated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).pow(2).mean().backward()
    optimizer.step()


def test_an_optimizer_that_is_collected_while_the_next_training_is_noted_makes_no_fault(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watching()
    first, model = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.01), [torch.optim.SGD(first.parameters(), lr=0.01)]
    forward_state = watch.models.forward_state

    def collecting() -> Any:
        kept.clear()  # as the garbage collector does wherever an object is made
        return forward_state()

    updated(first, kept[0])
    updated(model, optimizer)
    monkeypatch.setattr(watch.models, "forward_state", collecting)
    watch.past.let_go()
    watch.past.window_begins()
    assert kept == []
    assert watch.past.steps


def test_poisoned_weights_are_restored_after_another_optimizer_was_dropped_in_the_same_step(watching: Any) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in model]
    for step in range(6):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        if step == 4:
            weights = model[1].weight.detach().clone()
            model[1].weight.data.fill_(torch.nan)
        if step == 5:
            del optimizers[0]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert watch.barrier.faults == {}
    assert torch.isfinite(model[1].weight).all()
    assert torch.allclose(model[1].weight, weights, atol=0.1)


class Normed(nn.Sequential):
    """A model with running statistics and an optimizer."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.01)

    def copied(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.state_dict().items()}


def differing(model: nn.Module, before: dict[str, Tensor]) -> list[str]:
    return [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]


def batch(*, bad: bool = False) -> Tensor:
    return torch.randn(8, 4).index_fill(1, torch.tensor([2]), torch.nan) if bad else torch.randn(8, 4)


def step(*models: Normed, bad: bool = False, meanwhile: Callable[[], None] = lambda: None) -> None:
    losses = [model(batch(bad=bad)).pow(2).mean() for model in models]
    meanwhile()
    torch.stack(losses).sum().backward()
    for model in models:
        model.optimizer.step()
        model.optimizer.zero_grad()


def test_an_earlier_training_that_is_dropped_in_the_middle_of_a_step_takes_nothing_of_it(watching: Any) -> None:
    watch = watching()
    earlier = [Normed()]
    step(earlier[0])
    model = Normed()
    before = model.copied()
    step(model, bad=True, meanwhile=earlier.clear)
    assert differing(model, before) == []
    assert watch.ledger.log[-1].ledger.skipped == 1


def test_a_model_of_an_ended_training_that_is_trained_again_keeps_no_trace_of_a_bad_batch(watching: Any) -> None:
    watch = watching()
    first = Normed()
    step(first)
    second = Normed()
    step(second)
    assert watch.models.roots() == [second], "the first one rests"
    before = [first.copied(), second.copied()]
    step(second, first, bad=True)  # the first is called when the step has begun
    assert [differing(first, before[0]), differing(second, before[1])] == [[], []]
    assert watch.barrier.faults == {}
    step(second, first)
    assert differing(first, before[0])


@pytest.mark.parametrize("kept", [[], ["models"]])
def test_what_a_training_costs_does_not_grow_with_models_that_are_kept(watching: Any, kept: list[str]) -> None:
    watch = watching()
    models = []
    for _ in range(4):
        models.append(Normed())
        step(models[-1])
        if not kept:
            models.clear()
    assert len(watch.models.roots()) <= 1
    assert len(watch.ledger.in_use) <= 1
    assert watch.models.forward_state().num_modules <= 1


def test_a_training_that_is_collected_with_a_cycle_of_references_was_checked_at_its_end(watching: Any) -> None:
    watch = watching()
    for _ in range(3):
        model = Normed()  # the one before rests now, and only the garbage collector finds it
        gc.collect()
        step(model)
        model.register_forward_hook(lambda *_, kept=model: None)
    assert len(watch.ledger.living) < 3
    assert watch.finish()["final_state"] == "finite"
