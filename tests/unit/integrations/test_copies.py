"""A guarded model and its optimizer are copied, pickled and saved as unguarded ones, in the middle of a run."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch[:, :1]).pow(2).mean()


def saved(thing: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "torch.save": saved,
}


DEEP = ("deepcopy", "pickle", "torch.save")


@pytest.fixture(params=["guard", "attach"])
def running(request: pytest.FixtureRequest) -> Any:
    """A model, its optimizer, a function that makes a step, and the guard."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    entry = request.param
    guard: Any = sg.Guard(model, optimizer, loss_fn) if entry == "guard" else sg.attach(optimizer, model=model)

    def step() -> None:
        batch = torch.randn(6, 4)
        if entry == "guard":
            guard.step(batch)
            return
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()

    with guard:
        yield model, optimizer, step, guard
    assert guard.summary()["guard_faults"] == {}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_model_is_copied_at_any_step_and_the_copy_is_its_own(running: Any, make: Any) -> None:
    model, _, step, guard = running
    for number in range(13):
        step()
        made = make(model)
        assert torch.equal(made[0].weight, model[0].weight), number
    if make is not copy.copy:  # that one shares its parameters
        counted = guard.summary()["steps"]
        before = model[0].weight.detach().clone()
        own = torch.optim.SGD(made.parameters(), lr=0.1)
        loss_fn(made.train(), torch.randn(6, 4)).backward()
        own.step()
        assert torch.equal(model[0].weight, before)
        assert not torch.equal(made[0].weight, before)
        assert guard.summary()["steps"] == counted


@pytest.mark.parametrize("make", [COPIES[name] for name in DEEP], ids=DEEP)
def test_an_optimizer_is_copied(running: Any, make: Any) -> None:
    _, optimizer, step, _ = running
    for _ in range(3):
        step()
    assert make(optimizer).state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def test_a_saved_model_is_loaded_where_steadygrad_is_not_installed(running: Any, tmp_path: Path) -> None:
    model, _, step, _ = running
    step()
    torch.save(model, tmp_path / "model.pt")
    program = (
        "import sys; sys.modules['steadygrad'] = None\n"
        "import torch\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False).eval()\n"
        "print(tuple(model(torch.zeros(2, 4)).shape), 'steadygrad.detect' in sys.modules)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert answer.stdout.strip() == "(2, 1) False", answer.stderr


def test_a_model_prepared_by_accelerate_is_copied() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    with sg.attach(accelerator) as guard:
        for _ in range(4):
            accelerator.backward(loss_fn(model, torch.randn(6, 4)))
            optimizer.step()
            optimizer.zero_grad()
            for make in COPIES.values():
                assert torch.equal(make(model)[0].weight, model[0].weight)
    assert guard.summary()["guard_faults"] == {}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_schedule_and_a_scaler_of_an_attached_optimizer_are_copied_and_pickled_as_themselves(
    duplicate: Callable[[Any], Any],
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard = sg.attach(optimizer, model=model, scheduler=schedule, scaler=scaler)
    schedule.last_epoch = 3
    copies = duplicate([schedule, scaler])
    assert type(duplicate(schedule)) is torch.optim.lr_scheduler.StepLR
    assert type(duplicate(scaler)) is torch.amp.GradScaler
    assert duplicate(schedule).last_epoch == 3
    assert len(copies) == 2
    guard.close()
    assert type(schedule) is torch.optim.lr_scheduler.StepLR
