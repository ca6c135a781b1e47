"""Whatever a step's own code counts, collects and draws is as it was after the step was run again."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import steadygrad as sg
from steadygrad.engine.recovery.reruns.reached_state import ReachedState
from steadygrad.journal import read_events

BAD, STEPS = 10, 20
CALLS = {"of the file": 0}


class Counted:
    """An object of the program's own, with a number in a class attribute too."""

    made = 0

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> None:
        self.number += 1
        type(self).made += 1


class Busy(nn.Module):
    """Collects, counts and draws at each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen: list[int] = []
        self.counted = Counted()
        self.queue = torch.zeros(8)
        self.torchs = torch.Generator().manual_seed(0)
        self.pythons = random.Random(0)
        self.numpys = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(self.seen))
        self.counted.count()
        self.queue[self.counted.number % 8] = float(self.counted.number)
        torch.rand(1, generator=self.torchs)
        self.pythons.random()
        self.numpys.random()
        return self.layer(x)


class Program:
    """A model, a loss with state of its own, and batches, one of which is bad."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        Counted.made = CALLS["of the file"] = 0
        self.model = Busy()
        self.losses: list[float] = []
        self.own = torch.zeros(3)
        self.noise = torch.Generator().manual_seed(1)
        g = torch.Generator().manual_seed(3)
        self.batches = [torch.randn(8, 4, generator=g) for _ in range(STEPS)]
        self.batches[BAD][3, 1] = torch.nan

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        CALLS["of the file"] += 1
        self.losses.append(0.0)
        self.own.add_(1.0)
        torch.rand(1, generator=self.noise)
        return model(batch).mean().square()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def state(self) -> dict[str, Any]:
        model = self.model
        return {
            "collected": (len(model.seen), len(self.losses)),
            "counted": (model.counted.number, Counted.made, CALLS["of the file"]),
            "tensors": (model.queue.tolist(), self.own.tolist()),
            "drawn": (
                torch.rand(1, generator=model.torchs).item(), torch.rand(1, generator=self.noise).item(),
                model.pythons.random(), model.numpys.random(),
            ),
        }  # fmt: skip


class Rows(Dataset[Tensor]):
    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Tensor:
        return self.batches[index]


def plain_loop(program: Program, guarded: bool) -> Any:
    optimizer = program.optimizer()
    guard = sg.Guard(program.model, optimizer, program.loss) if guarded else None
    for batch in program.batches:
        if guard is not None:
            guard.step(batch)
        else:
            program.loss(program.model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return guard


def attached_loop(program: Program, guarded: bool) -> Any:
    optimizer = program.optimizer()
    guard = sg.attach(optimizer, model=program.model) if guarded else None
    for batch in program.batches:
        program.loss(program.model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def accelerate_loop(program: Program, guarded: bool) -> Any:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        program.model, program.optimizer(), DataLoader(Rows(program.batches), batch_size=None)
    )
    guard = sg.attach(accelerator) if guarded else None
    for batch in loader:
        accelerator.backward(program.loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    return guard


class WithLoss(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.inner, self.loss = program.model, program.loss

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.inner, x)}


def trainer_loop(program: Program, guarded: bool) -> Any:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir="unused", max_steps=STEPS, per_device_train_batch_size=1, use_cpu=True, save_strategy="no",
        logging_strategy="no", report_to="none", disable_tqdm=True, remove_unused_columns=False,
        train_sampling_strategy="sequential", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=WithLoss(program), args=arguments, train_dataset=Rows(program.batches),
        data_collator=lambda rows: {"x": rows[0]},
    )  # fmt: skip
    guard = sg.attach(trainer) if guarded else None
    trainer.train()
    return guard


def lightning_loop(program: Program, guarded: bool) -> Any:
    pl = pytest.importorskip("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = program.model

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return program.loss(self.inner, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return program.optimizer()

    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    guard = sg.attach(trainer) if guarded else None
    trainer.fit(Module(), DataLoader(Rows(program.batches), batch_size=None))
    return guard


LOOPS: dict[str, Callable[[Program, bool], Any]] = {
    "Guard": plain_loop,
    "attach(optimizer)": attached_loop,
    "Accelerate": accelerate_loop,
    "Trainer": trainer_loop,
    "Lightning": lightning_loop,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_refused_step_and_its_diagnosis_leave_what_the_program_counts_collects_and_draws(
    loop: Callable[[Program, bool], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = Program()
    loop(plain, False)
    wanted = plain.state()
    guarded = Program()
    guard = loop(guarded, True)
    assert guard.summary()["skipped"] == 1
    guard.close()
    assert guarded.state() == wanted


def _reached(*roots: Any) -> ReachedState:
    return ReachedState(roots, set())


def test_of_a_file_only_the_globals_that_the_code_names_are_kept() -> None:
    names: dict[str, Any] = {"used": [1], "other": [1], "__file__": __file__}
    exec(compile("def loss(model, batch):\n    return [used for _ in (0,)]\n", __file__, "exec"), names)
    reached = _reached(names["loss"])
    names["used"].append(2)
    names["other"].append(2)
    reached.restore()
    assert (names["used"], names["other"]) == ([1], [1, 2])


def test_a_name_that_the_code_binds_is_unbound_again() -> None:
    names: dict[str, Any] = {"__file__": __file__}
    exec(compile("def loss():\n    global count\n    count = 1\n", __file__, "exec"), names)
    reached = _reached(names["loss"])
    names["loss"]()
    assert names["count"] == 1
    reached.restore()
    assert "count" not in names


def test_a_data_set_within_reach_is_not_walked() -> None:
    rows = Rows([torch.zeros(2)])
    reached = _reached(lambda: rows)
    rows.batches.append(torch.ones(2))
    reached.restore()
    assert len(rows.batches) == 2


def test_a_thing_that_can_only_be_walked_once_is_said_not_to_be_restorable() -> None:
    numbers: Iterator[int] = itertools.count()
    assert not _reached(lambda: next(numbers)).exact
    assert _reached(lambda: 1).exact


def test_tensors_that_are_written_to_are_restored_and_those_restored_elsewhere_are_left() -> None:
    mine, theirs = torch.zeros(3), torch.zeros(3)
    reached = ReachedState([lambda: (mine, theirs)], {id(theirs)})
    mine.add_(1.0)
    theirs.add_(1.0)
    reached.restore()
    assert (mine.tolist(), theirs.tolist()) == ([0.0] * 3, [1.0] * 3)


def test_a_teacher_that_is_moved_by_its_data_is_restored() -> None:
    teacher = nn.Linear(300, 300)
    reached = _reached(lambda: teacher)
    weights = teacher.weight.detach().clone()
    teacher.weight.data.mul_(0.5)
    reached.restore()
    assert torch.equal(teacher.weight, weights)


def test_an_object_that_refuses_to_be_restored_does_not_keep_the_others_from_it() -> None:
    class Stubborn:
        __slots__ = ("value",)

        def __setattr__(self, name: str, value: Any) -> None:
            if getattr(self, "value", None) == "changed":
                raise RuntimeError("no")
            object.__setattr__(self, name, value)

    stubborn, numbers = Stubborn(), [1]
    stubborn.value = "first"
    reached = _reached(lambda: (stubborn, numbers))
    stubborn.value = "changed"
    numbers.append(2)
    reached.restore()
    assert numbers == [1]


def test_a_large_array_is_restored_and_one_that_is_too_large_is_said_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = np.zeros(300_000)
    reached = _reached(lambda: priorities)
    priorities[7] = 1.0
    reached.restore()
    assert reached.exact
    assert priorities[7] == 0.0
    monkeypatch.setattr("steadygrad.engine.recovery.reruns.reached_state._ALL", 1 << 20)
    assert not _reached(lambda: priorities).exact
    priorities.flags.writeable = False
    assert _reached(lambda: priorities).exact


def writes_to(table: Any) -> Callable[..., Tensor]:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        table.write("a line\n")
        table.flush()
        return model(batch).square().mean()

    return loss


def opens(path: Path) -> Callable[..., Tensor]:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with path.open("a") as table:
            table.write("a line\n")
        return model(batch).square().mean()

    return loss


@pytest.mark.parametrize("opened", [True, False])
def test_a_loss_that_leaves_a_line_in_a_file_is_not_evaluated_to_look_at_a_loss(tmp_path: Path, opened: bool) -> None:
    model, path = nn.Linear(4, 1), tmp_path / "losses.csv"
    with path.open("a") as table:
        loss = writes_to(table) if opened else opens(path)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with sg.Guard(model, optimizer, loss, run_dir=tmp_path / "run") as guard:
            for _ in range(8):
                guard.step(torch.randn(6, 4))
            recovery = guard._loop.recovery
            snapshots, batches = recovery._snapshots_for_divergence(), recovery._batch_buffer.unchanged()
            assert len(snapshots) > 0
            assert len(batches) == 8
            assert not recovery.rate_trial.objective(snapshots, batches)
            assert not recovery.rate_trial.objective(snapshots, batches)
    assert len(path.read_text().splitlines()) == 8
    told = [event.data["detail"] for event in read_events(tmp_path / "run") if event.kind == "steps_not_run_again"]
    assert opened or "for writing" in told[0]
    assert len(told) == (0 if opened else 1)  # what is open can only be walked once, so it is not looked at at all
