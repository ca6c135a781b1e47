"""User state is not modified: random numbers, injected faults, public names, TorchScript, the next training."""

from __future__ import annotations

import importlib
import pkgutil
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harm_runs import finite, printed_here, some_slow, under_steady_run
from torch import nn

import steadygrad as sg
from steadygrad.testing import inject

# -- random numbers that the loop draws between two steps


def draw_torch(step: int) -> torch.Tensor:
    return torch.randn(16, 5)


def draw_permuted(step: int) -> torch.Tensor:
    table = torch.arange(4096 * 5, dtype=torch.float32).reshape(4096, 5) / 1e4
    return table[torch.randperm(4096)[:16]].clone()


def draw_numpy(step: int) -> torch.Tensor:
    return torch.from_numpy(np.random.randn(16, 5).astype("float32"))


def draw_python(step: int) -> torch.Tensor:
    return torch.tensor([[random.gauss(0, 1) for _ in range(5)] for _ in range(16)])


@pytest.mark.parametrize("settle", ["now", "late"])
@pytest.mark.parametrize("draw", [draw_torch, draw_permuted, draw_numpy, draw_python])
def test_no_batch_that_the_loop_draws_comes_twice_after_a_skip(draw: Any, settle: str) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seen: list[bytes] = []
    with sg.Guard(
        model, optimizer, lambda m, b: (m(b[:, :4]) - b[:, 4:]).pow(2).mean(), settle=settle, diagnose="off"
    ) as guard:
        for step in range(24):
            batch = draw(step)
            seen.append(batch.numpy().tobytes())
            if step in (9, 15, 16):
                batch[3, 4] = float("inf")
            guard.step(batch)
        assert guard.summary()["skipped"] == 3
    assert len(set(seen)) == len(seen)


def test_a_shuffled_loader_gives_each_row_once_an_epoch_though_batches_are_skipped_late() -> None:
    torch.manual_seed(0)
    rows = torch.arange(96.0).reshape(96, 1).repeat(1, 5)
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    orders = []
    with sg.Guard(
        model, optimizer, lambda m, b: (m(b[:, :4]) - b[:, 4:]).pow(2).mean(), settle="late", diagnose="off"
    ) as guard:
        for _ in range(3):
            order = []
            for index, batch in enumerate(loader):
                order += batch[:, 0].tolist()
                guard.step(batch * float("nan") if index == 11 else batch)
            orders.append(order)
    assert all(sorted(order) == rows[:, 0].tolist() for order in orders)
    assert len({tuple(order) for order in orders}) == 3


# -- faults that a test injects


@pytest.mark.parametrize(
    "plan",
    [
        {12: "huge_gradient", 15: "nan_weight", 18: "inf_gradient"},
        {10: "nan_gradient", 11: "nan_gradient", 14: "nan_gradient"},
        {8: "inf_gradient", 20: "nan_gradient"},
    ],
    ids=str,
)
def test_injected_faults_strike_training_passes_and_not_the_replays_of_a_diagnosis(plan: dict[int, str]) -> None:
    struck = {}
    for diagnose in ("off", "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with (
            sg.Guard(model, optimizer, lambda m, b: (m(b[:, :8]) - b[:, 8:]).pow(2).mean(), diagnose=diagnose) as guard,
            inject(model, at=plan) as faults,
        ):
            for _ in range(30):
                guard.step(torch.randn(16, 9))
        told = guard.summary()
        struck[diagnose] = (told["skipped"], told["rolled_back"], [str(each) for each in faults.struck])
        assert finite(model.parameters())
    assert struck["off"] == struck["auto"]


# -- names


def test_importing_every_module_of_ours_leaves_the_public_names_what_they_were() -> None:
    before = {name: getattr(sg, name) for name in sg.__all__}
    for found in pkgutil.iter_modules(sg.__path__):
        importlib.import_module(f"steadygrad.{found.name}")
    assert [name for name, value in before.items() if getattr(sg, name) is not value] == []
    assert all(callable(getattr(sg, name)) for name in ("attach", "Guard", "doctor", "probe", "selftest", "diagnose"))


def test_names_asked_for_after_their_modules_were_imported_are_functions_too() -> None:
    for name in ("attach", "doctor", "probe", "selftest", "diagnose", "guard"):
        try:
            importlib.import_module(f"steadygrad.{name}")
        except ImportError:
            continue
    importlib.reload(importlib.import_module("steadygrad.integrations.attach"))
    assert callable(sg.attach)
    assert callable(sg.doctor)


# -- the next training in the process

TRAIN = """
import torch, hashlib
torch.set_num_threads(1)
def digest(m): return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in m.parameters())).hexdigest()[:16]
def build(seed, rate):
    torch.manual_seed(seed); m = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return m, torch.optim.SGD(m.parameters(), lr=rate)
def step(m, o, spoil=1.0):
    x = torch.randn(8, 4); loss = (m(x) - x.sum(1, keepdim=True)).pow(2).mean() * spoil
    o.zero_grad(); loss.backward(); o.step()
"""
SEARCHES = {
    "a trial that is given up, then three good ones": """
for trial in range(4):
    m, o = build(trial, 0.05)
    try:
        for k in range(30): step(m, o, float("nan") if trial == 0 and k >= 5 else 1.0)
    except Exception: pass
    if trial: print(trial, digest(m))
""",
    "two models trained in turn, one of them dead": """
dead, good = build(1, 0.05), build(2, 0.05)
for k in range(30):
    torch.manual_seed(k)
    try: step(*dead, float("nan") if k >= 3 else 1.0)
    except Exception: pass
    torch.manual_seed(1000 + k); step(*good)
print(digest(good[0]))
""",
    "small losses first, then one a million times larger": """
for scale in (1e-3, 1e3, 1e-3):
    m, o = build(7, 1e-4 / scale)
    for k in range(60): step(m, o, scale)
    print(scale, digest(m))
""",
}


@pytest.mark.parametrize("search", some_slow(SEARCHES, 2))
def test_a_training_is_not_touched_by_one_before_it_in_the_same_program(search: str, tmp_path: Path) -> None:
    text = TRAIN + SEARCHES[search]
    ours = under_steady_run(text, tmp_path, "--diagnose", "off")
    assert ours.code == 0, ours.stderr[-800:]
    assert ours.stdout == printed_here(text)


# -- TorchScript

SCRIPTED = {
    "functions and optimizers that torch scripts": """
from torch.distributed.optim import ZeroRedundancyOptimizer
import torch.distributed.optim.functional_adadelta
@torch.jit.script
def f(x: torch.Tensor) -> torch.Tensor: return (x * x).sum()
""",
    "a module that names a class of its file": """
from typing import List, NamedTuple, Optional
class Pair(NamedTuple):
    a: torch.Tensor
    b: Optional[torch.Tensor]
class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pair: return Pair(x * x, None)
inner = torch.jit.script(Inner())
def f(x): return inner(x).a.sum()
""",
    "a function scripted inside a function": """
def make():
    local = 2
    def helper(x: torch.Tensor) -> torch.Tensor: return x.abs() * x.abs()
    def g(x: torch.Tensor) -> torch.Tensor: return helper(x).sum()
    return torch.jit.script(g)
f = make()
""",
}


@pytest.mark.parametrize("kind", some_slow(SCRIPTED, 2))
def test_what_can_be_scripted_alone_can_be_scripted_under_steady_run(kind: str, tmp_path: Path) -> None:
    text = (
        "import torch, warnings\nwarnings.simplefilter('ignore')\n"
        + SCRIPTED[kind]
        + (
            "m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
            "for k in range(5):\n    o.zero_grad(); f(m(torch.randn(8, 4))).backward(); o.step()\nprint('DONE')\n"
        )
    )
    ours = under_steady_run(text, tmp_path, "--diagnose", "off")
    assert "DONE" in ours.stdout, ours.stderr[-800:]
    ours.check_unhurt()
