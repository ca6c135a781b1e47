"""A watched program has the memory that it has alone: what is kept of its batches and graphs is bounded in bytes."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from steadygrad.engine.state import kept_bytes

ROWS, WIDTH = 64, 64
BATCH = 4 * ROWS * WIDTH


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lets four batches be kept."""
    num_bytes = 4 * BATCH + 4 * ROWS * 4
    monkeypatch.setattr(kept_bytes, "_allowed", {})
    monkeypatch.setattr(kept_bytes, "_MOST", {kept_bytes.HOST: num_bytes, kept_bytes.DEVICE: num_bytes})
    return num_bytes


class MadeObjects:
    """Counts how many of the objects that a program made are alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def __call__(self, value: Any) -> Any:
        self._made.append(weakref.ref(value))
        return value

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(reference() is not None for reference in self._made)


class LossNet(nn.Module):
    """A model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.second(torch.tanh(self.first(x))), y)


def pair() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, WIDTH)
    return x, x[:, :1] * 0.5


def num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


def test_batches_are_kept_up_to_so_many_bytes(watching: Callable[..., Any], few_bytes: int) -> None:
    watching()
    torch.manual_seed(0)
    model, made = LossNet(), MadeObjects()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(40):
        x, y = pair()
        made(x)
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
    assert made.alive <= 6  # four, the last one, and the program's own


def test_arrays_count_as_tensors_do(watching: Callable[..., Any], few_bytes: int) -> None:
    watching()
    torch.manual_seed(0)
    model, made = LossNet(), MadeObjects()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(40):
        x = made(numpy.random.rand(ROWS, WIDTH).astype("float32"))
        optimizer.zero_grad()
        loss = model(torch.as_tensor(x), torch.as_tensor(x[:, :1]))
        loss.backward()
        optimizer.step()
    assert made.alive <= 6


def test_a_batch_larger_than_what_may_be_kept_is_not_kept(watching: Callable[..., Any], few_bytes: int) -> None:
    watching()
    torch.manual_seed(0)
    model, made = LossNet(), MadeObjects()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = DataLoader(
        [torch.randn(WIDTH) for _ in range(40 * ROWS)],  # type: ignore[arg-type]
        batch_size=8 * ROWS, collate_fn=lambda rows: made(torch.stack(rows)),
    )  # fmt: skip
    most = 0
    for x in loader:
        optimizer.zero_grad()
        loss = model(x, x[:, :1])
        most = max(most, made.alive)
        loss.backward()
        optimizer.step()
    assert most <= 2


def test_the_micro_batches_of_one_update_are_kept_up_to_so_many_bytes(
    watching: Callable[..., Any], few_bytes: int
) -> None:
    watching()
    torch.manual_seed(0)
    model, made = LossNet(), MadeObjects()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for number in range(60):
        x, y = pair()
        made(x)
        loss = model(x, y)
        loss.backward()
        if number % 20 == 19:
            assert made.alive <= 10  # four of this update, four of the one before, and the last one
            optimizer.step()
            optimizer.zero_grad()


def test_the_graphs_of_calls_without_backward_are_freed(watching: Callable[..., Any]) -> None:
    watching()
    torch.manual_seed(0)
    model = LossNet()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    inside = MadeObjects()
    model.first.register_forward_hook(lambda *hooked: (inside(hooked[2]), None)[1])
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(*pair())
        loss.backward()
        optimizer.step()
        total = sum(model(*pair()).item() for _ in range(20))
        assert inside.alive <= 2, total


@pytest.mark.parametrize("made", ["no optimizer", "an optimizer that is not used"])
def test_a_loop_that_updates_its_weights_by_hand_gathers_nothing(watching: Callable[..., Any], made: str) -> None:
    watching()
    torch.manual_seed(0)
    model = LossNet()
    if made != "no optimizer":
        model.spare = torch.optim.SGD(model.parameters(), 1e-3)  # type: ignore[assignment]
    counts = []
    for step in range(6000):
        loss = model(torch.ones(1, WIDTH), torch.ones(1, 1))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad  # type: ignore[operator]
                parameter.grad = None
        if step % 2000 == 1999:
            counts.append(num_tensors())
    assert counts[-1] <= counts[0] + 20


def test_many_calls_for_each_update_gather_nothing(watching: Callable[..., Any]) -> None:
    watching()
    torch.manual_seed(0)
    model = LossNet()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    counts = []
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(400):
            model(torch.randn(1, WIDTH), torch.ones(1, 1)).backward()
        optimizer.step()
        counts.append(num_tensors())
    assert counts[-1] <= counts[1] + 100


def test_a_refused_batch_is_let_go_at_the_next_update(watching: Callable[..., Any]) -> None:
    watch = watching(diagnose="origin")
    torch.manual_seed(0)
    model, made = LossNet(), MadeObjects()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for number in range(12):
        x, y = pair()
        if number == 8:
            made(x)[0, 0] = float("nan")
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
    assert watch.ledger.loops[0].log.ledger.skipped == 1
    del x, y, loss
    assert made.alive == 0


def normed_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.1), nn.Linear(3, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_beside(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer, made: MadeObjects) -> None:
    if kind == "copied":  # an optimizer that is copied is not made anew
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        model = normed_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if kind == "in a cycle":  # only the garbage collector finds it
        optimizer.itself = optimizer  # type: ignore[attr-defined]
    train(made(model), optimizer, 3)


@pytest.mark.parametrize("kind", ["new", "copied", "in a cycle"])
def test_a_model_that_is_trained_beside_another_and_dropped_is_freed_at_once(
    watching: Callable[..., Any], kind: str
) -> None:
    watch, made, model = watching(), MadeObjects(), normed_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    for _ in range(4):
        train_beside(kind, model, optimizer, made)
        assert made.alive == 0
        train(model, optimizer, 1)
    assert watch.barrier.faults == {}
    assert watch.models.roots() == [model]


class Training:
    """A training whose lines read all of it from one object."""

    def __init__(self) -> None:
        self.model = normed_model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self, *, meanwhile: Callable[[], Any] = lambda: None) -> None:
        loss = self.model(torch.randn(8, 4)).pow(2).mean()
        meanwhile()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@pytest.mark.parametrize("when", ["between steps", "in a step"])
def test_a_training_that_is_dropped_is_freed_after_a_few_updates_of_another(
    watching: Callable[..., Any], when: str
) -> None:
    watch, made, main = watching(), MadeObjects(), Training()
    for _ in range(3):
        main.step()
        held = [Training()]
        made(held[0].model)
        held[0].step()
        if when == "between steps":
            held.clear()
        main.step(meanwhile=lambda held=held: (held.clear(), gc.collect()))  # type: ignore[misc]
        for _ in range(4):
            main.step()
        assert made.alive == 0
    assert watch.barrier.faults == {}


def test_what_is_known_of_a_training_outlives_one_that_was_dropped_beside_it(watching: Callable[..., Any]) -> None:
    watch, main = watching(), Training()
    main.step()
    beside = Training()
    beside.step()
    main.step()
    calls, steps = len(watch.models.calls), watch.past.steps
    del beside
    gc.collect()
    assert (len(watch.models.calls), watch.past.steps) == (calls, steps)
    assert watch.barrier.faults == {}


def test_a_call_that_was_left_out_does_not_hide_the_memory_of_the_first(
    watching: Callable[..., Any], few_bytes: int
) -> None:
    model = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = watching()
    watch.optimizer_made(optimizer)
    model(torch.randn(3 * ROWS, WIDTH))
    watch.models.lost_calls += 1  # as for a call inside of `torch.func.vmap`
    model(torch.randn(3 * ROWS, WIDTH))
    assert len(watch.models.calls) == 1  # both together are more than may be kept
