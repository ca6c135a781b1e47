"""Lines of a program that are run again leave nothing behind, and lines that would are stopped before they do."""

from __future__ import annotations

import gc
import random
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from steadygrad.engine.recovery.reruns.side_effects import HasEffect, supervised
from steadygrad.engine.recovery.reruns.user_state import UserState


class Trainer:
    total = 0

    def __init__(self) -> None:
        self.seen = 0
        self.losses: list[float] = []
        self.best: dict[str, Any] = {"loss": None}
        self.window: deque[int] = deque([1, 2], maxlen=2)
        self.names = {"a"}
        self.random = random.Random(0)
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        self.seen += 1
        Trainer.total += 1
        self.losses.append(1.0)
        self.best["loss"], self.best["new"] = 2.0, 3.0
        self.window.append(3)
        self.names.add("b")
        self.random.random()
        torch.rand(1, generator=self.generator)
        self.made_later = True


def everything(trainer: Trainer) -> Any:
    return (
        trainer.seen, Trainer.total, list(trainer.losses), dict(trainer.best), list(trainer.window), set(trainer.names),
        trainer.random.getstate(), trainer.generator.get_state().tolist(), hasattr(trainer, "made_later"),
    )  # fmt: skip


def test_what_lines_count_append_and_assign_is_undone() -> None:
    trainer = Trainer()
    before, losses = everything(trainer), trainer.losses
    state = UserState([trainer, Trainer])
    for _ in range(3):
        trainer.step()
        assert everything(trainer) != before
        state.restore()
        assert everything(trainer) == before
    assert trainer.losses is losses  # the same list, not another one that is equal


def test_a_closures_counter_and_a_modules_own_attribute_are_undone() -> None:
    count = 0
    module = torch.nn.Linear(2, 2)
    module.calls = 0  # type: ignore[assignment]

    def step() -> None:
        nonlocal count
        count += 1
        module.calls += 1  # type: ignore[operator]

    state = UserState([step])
    step()
    state.restore()
    assert (count, module.calls) == (0, 0)


def _write(path: Path) -> None:
    with open(path, "w") as file:
        file.write("x")


@pytest.mark.parametrize("what", ["open", "path", "save", "held file", "generator", "iterator", "tensor", "thread"])
def test_a_line_with_an_effect_is_stopped_before_it_has_it(what: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    log = open(tmp_path / "log", "w")  # noqa: SIM115
    stream = (item for item in [1, 2, 3])
    next(stream)
    data = torch.zeros(3)
    started: list[int] = []
    lines = {
        "open": lambda: _write(path),
        "path": lambda: path.write_text("x"),
        "save": lambda: torch.save(data, path),
        "held file": lambda: log.write("x"),
        "generator": lambda: next(stream),
        "iterator": lambda: next(stream),
        "tensor": lambda: data.add_(1),
        "thread": lambda: threading.Thread(target=lambda: started.append(1)).start(),
    }
    with pytest.raises(HasEffect), supervised(UserState([stream]), []):
        lines[what]()
    log.close()
    assert not path.exists()
    assert (tmp_path / "log").read_text() == ""
    assert next(stream) == 2
    assert data.sum() == 0
    assert started == []


def test_a_handler_that_takes_everything_does_not_hide_an_effect(tmp_path: Path) -> None:
    log = open(tmp_path / "log", "w")  # noqa: SIM115

    def lines() -> None:
        try:
            log.write("first")
        except:  # noqa: E722
            pass
        torch.ones(2).add(1)
        log.write("second")

    with pytest.raises(HasEffect, match=r"calls TextIOWrapper\.write"), supervised(UserState([]), []):
        lines()
    log.close()
    assert (tmp_path / "log").read_text() == ""


def test_an_effect_that_was_taken_by_the_last_line_is_raised_in_the_end(tmp_path: Path) -> None:
    def lines() -> None:
        try:
            _write(tmp_path / "out")
        except:  # noqa: E722
            pass

    with pytest.raises(HasEffect), supervised(UserState([]), []):
        lines()


def test_finalizers_of_other_objects_wait_until_the_lines_have_run(tmp_path: Path) -> None:
    """Stopped half-way, a finalizer would be lost, and with it what the program wanted to write."""
    path = tmp_path / "closed"

    class Log:
        def __del__(self) -> None:
            path.write_text("x")

    gc.collect()
    log = Log()
    log.itself = log  # type: ignore[attr-defined]
    del log
    with supervised(UserState([]), []):
        made = [[each] for each in range(100_000)]
        assert not path.exists()
    assert gc.isenabled()
    gc.collect()
    assert path.read_text() == "x"
    assert len(made) == 100_000


def test_lines_that_only_compute_pass_and_may_write_into_what_is_restored() -> None:
    model, running = torch.nn.Linear(3, 1), torch.zeros(3)
    with supervised(UserState([model]), [running]):
        x = torch.ones(2, 3)
        x[0] = 0.0
        x.masked_fill_(x == 0, 2.0)
        running.add_(1)
        loss = model(x).pow(2).mean() + sum(value for value in [1.0, 2.0])
        loss.backward()
    assert float(running.sum()) == 3.0
    assert model.weight.grad is not None


def test_a_file_can_be_read_and_afterwards_all_is_allowed_again(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text("1")
    with supervised(UserState([]), []):
        assert path.read_text() == "1"
    path.write_text("2")
    assert path.read_text() == "2"


def test_what_the_import_system_keeps_in_a_module_is_not_walked() -> None:
    """A test runner's loader holds all of its tests: thousands of objects that no line of the program reads."""
    namespace: dict[str, Any] = {"__loader__": [[[each] for each in range(1_500)] for _ in range(20)], "seen": [0]}
    exec(compile("def count():\n    seen.append(1)", str(Path(__file__)), "exec"), namespace)
    state = UserState([namespace["count"]])
    namespace["count"]()
    state.restore()
    assert state.complete
    assert namespace["seen"] == [0]
