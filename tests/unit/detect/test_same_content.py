"""Rows that are drawn again although others come, and noise that is the same in every batch; and what looks like it."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.loop.measured.repeated_draws import RepeatedDraws
from steadygrad.detect.loop.measured.worker_seeds import draws_at_random

ROWS, WIDTH, UPDATES = 16, 8, 30


def told(batches: Iterator[Any], loss_of: Callable[[nn.Module, Any], Tensor]) -> set[str]:
    """What is said of a training over these batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = sg.attach(optimizer, model=model)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    guard.close()
    assert not guard.summary()["guard_faults"]
    return {found.slug for found in guard.vitals}


def regression(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


class Memory:
    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def push(self, count: int) -> None:
        for _ in range(count):
            self.entries.append({"state": torch.randn(WIDTH), "next": torch.randn(WIDTH), "priority": 1.0})


def stacked(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([row["state"] for row in rows]), torch.stack([row["next"] for row in rows])


@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize("by_chance", [False, True])
def test_the_oldest_of_a_growing_memory_again_and_again(kind: Any, by_chance: bool) -> None:
    memory = Memory(kind())

    def draws() -> Iterator[Any]:
        memory.push(ROWS)
        for _ in range(UPDATES):
            memory.push(4)
            yield stacked(random.sample(list(memory.entries), ROWS) if by_chance else list(memory.entries)[:ROWS])

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        assert memory.entries
        return regression(model, batch)

    assert ("repeated_batch" in told(draws(), loss_of)) is not by_chance


def test_several_passes_over_a_rollout_are_healthy() -> None:
    memory = Memory([])

    def draws() -> Iterator[Any]:
        for _ in range(3):
            memory.push(ROWS)
            yield from [stacked(memory.entries[-ROWS:])] * 10

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        assert memory.entries
        return regression(model, batch)

    assert "repeated_batch" not in told(draws(), loss_of)


def test_one_batch_that_is_meant_to_be_fitted_is_healthy() -> None:
    seen: list[Any] = []
    fixed = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch)
        seen.append((torch.randn(ROWS, WIDTH), 0))
        return regression(model, batch)

    assert "repeated_batch" not in told(((fixed[0].clone(), fixed[1]) for _ in range(UPDATES)), loss_of)


def test_the_first_of_a_queue_of_batches_that_fills_is_healthy() -> None:
    queue: deque[Any] = deque()

    def draws() -> Iterator[Any]:
        for _ in range(UPDATES):
            queue.append((torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)))
            yield queue[0]

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        assert queue
        return regression(model, batch)

    assert "repeated_batch" not in told(draws(), loss_of)


# -- noise


def noisy(clean: Tensor, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t, noise = torch.rand(len(clean), 1, generator=generator), torch.randn(clean.shape, generator=generator)
    return {"clean": clean, "noisy": (1 - t) * clean + t * noise, "noise": noise}


def denoising(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["noisy"]), batch["noise"])


def test_the_same_noise_in_every_batch_is_seen() -> None:
    levels = 2 + torch.randn(ROWS, 1)
    batches = (noisy(levels + 0.3 * torch.randn(ROWS, WIDTH), 5) for _ in range(UPDATES))
    assert "worker_same_seed" in told(batches, denoising)


def test_noise_that_is_drawn_anew_is_healthy() -> None:
    assert told((noisy(torch.randn(ROWS, WIDTH), seed) for seed in range(UPDATES)), denoising) == set()


def test_one_batch_with_its_noise_and_all_rows_with_new_noise_are_healthy() -> None:
    all_rows = torch.randn(ROWS, WIDTH)
    assert "worker_same_seed" not in told((noisy(all_rows, 5) for _ in range(UPDATES)), denoising)
    assert "worker_same_seed" not in told((noisy(all_rows, seed) for seed in range(UPDATES)), denoising)


@pytest.mark.parametrize("kind", ["positions", "levels", "seasons"])
def test_what_is_added_on_purpose_is_not_noise(kind: str) -> None:
    added = {
        "positions": torch.randn(WIDTH).expand(ROWS, WIDTH).clone(),
        "levels": torch.randn(ROWS, 1).expand(ROWS, WIDTH).clone(),
        "seasons": torch.sin(torch.randn(ROWS, 1) + torch.arange(WIDTH) * 0.6),
    }[kind]

    def loss_of(model: nn.Module, signal: Tensor) -> Tensor:
        fixed, whole = added, signal + added
        return F.mse_loss(model(whole), signal) + 0 * fixed.sum()

    assert "worker_same_seed" not in told((torch.randn(ROWS, WIDTH) for _ in range(UPDATES)), loss_of)


class Drawing(torch.utils.data.Dataset):
    """Samples with noise from a generator of its own."""

    def __init__(self, noise: float = 1.0) -> None:
        self.x = torch.arange(96.0).reshape(24, 4)
        self.noise, self.random = noise, numpy.random.default_rng(5)

    def __getitem__(self, number: int) -> Tensor:
        return self.x[number] + self.noise * torch.from_numpy(self.random.standard_normal(4)).float()


def epochs(dataset: Drawing, *, copied: bool, kept: bool = False, loaded: bool = True) -> str:
    """What is found in three epochs of six batches."""
    draws, made = RepeatedDraws(), list[Tensor]()
    loader = torch.utils.data.DataLoader(dataset) if loaded else None
    for epoch in range(3):
        source = copy.deepcopy(dataset) if copied else dataset
        if not kept or not epoch:
            made += [torch.stack([source[row] for row in range(place, place + 4)]) for place in range(0, 24, 4)]
        for batch in made[-6:]:
            if not draws.done:
                draws.called(batch)
    del loader
    return draws.found


def test_a_data_set_of_something_else_in_the_process_proves_nothing() -> None:
    other = Drawing()
    assert epochs(Drawing(), copied=True, loaded=False) == ""
    assert len(other.x) == 24


def test_epochs_that_draw_the_same_augmentations_are_named() -> None:
    dataset = Drawing()
    before = dataset.random.bit_generator.state
    assert "6 updates ago" in epochs(dataset, copied=True)
    assert dataset.random.bit_generator.state == before


@pytest.mark.parametrize(("noise", "copied", "kept"), [(1.0, False, False), (1.0, False, True), (0.0, True, False)])
def test_epochs_with_other_draws_and_batches_that_are_kept_or_never_drawn_are_left_alone(
    noise: float, copied: bool, kept: bool
) -> None:
    assert epochs(Drawing(noise), copied=copied, kept=kept) == ""


@pytest.mark.parametrize(("both", "seeded", "found"), [(True, True, True), (False, True, False), (True, False, False)])
def test_without_a_loader_the_batches_of_both_epochs_must_be_there_at_once(
    monkeypatch: pytest.MonkeyPatch, both: bool, seeded: bool, found: bool
) -> None:
    """Samples that are drawn once and put together anew in every epoch are as they should be."""
    dataset, draws, kept = Drawing(), RepeatedDraws(), list[Tensor]()
    module = "steadygrad.detect.loop.measured.repeated_draws"
    monkeypatch.setattr(f"{module}.living", lambda kind: [dataset] if kind is torch.utils.data.Dataset else [])
    for _ in range(3):
        if seeded:
            dataset.random = numpy.random.default_rng(5)
        for place in range(0, 24, 4):
            batch = torch.stack([dataset[row] for row in range(place, place + 4)])
            kept += [batch] if both else []
            if not draws.done:
                draws.called(batch)
    assert ("6 updates ago" in draws.found) == found


def test_a_data_set_that_is_too_large_to_be_copied_is_not_asked() -> None:
    dataset = Drawing()
    dataset.more = torch.zeros(1 << 23)  # type: ignore[attr-defined]
    assert draws_at_random(dataset, (4,)) == ""


def test_batches_of_half_precision_are_compared_too() -> None:
    draws = RepeatedDraws()
    draws.called(torch.zeros(4, 4, dtype=torch.bfloat16))
    assert draws.found == ""
