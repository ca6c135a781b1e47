"""Trainings that run at the same time in one program: what is wrong in one of them is not charged to another."""

from __future__ import annotations

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
