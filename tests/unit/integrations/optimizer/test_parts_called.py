"""A program may call parts of its model and never the model itself: a refused batch leaves no trace there either."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

BAD = {0, 7, 12}


class Autoencoder(nn.Module):
    """Its methods are called, its forward never is."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.decoder = nn.Linear(8, 1)

    def forward(self, batch: Tensor) -> Tensor:
        raise NotImplementedError

    def predict(self, batch: Tensor) -> Tensor:
        return self.decoder(self.encoder(batch))


class Container(nn.ModuleDict):
    """Has no forward."""

    def __init__(self) -> None:
        super().__init__({"nets": nn.ModuleList([Autoencoder().encoder, nn.Linear(8, 1)])})

    def predict(self, batch: Tensor) -> Tensor:
        encoder, decoder = self["nets"]
        return decoder(encoder(batch))


def train(kind: type[Any], *, bad: set[int], guarded: bool) -> tuple[dict[str, Any], Any]:
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = sg.attach(optimizer, model=model) if guarded else None
    noise = torch.Generator().manual_seed(1)
    for step in range(20):
        batch = torch.randn(8, 5, generator=noise)
        if step in bad:
            if not guarded:
                continue
            batch[2, 4] = float("nan")
        loss = (model.predict(batch[:, :4]) - batch[:, 4:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if guard is not None:
        guard.close()
    return copy.deepcopy(model.state_dict()), guard


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("kind", [Container, Autoencoder])
def test_a_refused_batch_leaves_no_trace_where_parts_of_the_model_are_called(kind: type[Any]) -> None:
    bad = BAD if kind is Container else BAD - {0}
    wanted, _ = train(kind, bad=bad, guarded=False)
    found, guard = train(kind, bad=bad, guarded=True)
    assert guard.summary()["skipped"] == len(bad)
    assert differing(wanted, found) == []


def test_it_is_said_where_no_call_was_heard_before_a_refused_update(caplog: pytest.LogCaptureFixture) -> None:
    train(Autoencoder, bad={0}, guarded=True)
    assert "not restored" in caplog.text, caplog.text


def test_a_model_whose_parts_are_called_is_left_without_hooks() -> None:
    torch.manual_seed(0)
    model = Container()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sg.attach(optimizer, model=model):
        model.predict(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_model_that_is_called_as_a_whole_gets_no_further_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sg.attach(optimizer, model=model):
        for _ in range(4):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not any(part._forward_pre_hooks for part in model.children())


_PROGRAM = """
import os, sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.ModuleDict({"enc": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)), "dec": nn.Linear(8, 1)})
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
noise = torch.Generator().manual_seed(1)
for step in range(12):
    batch = torch.randn(8, 5, generator=noise)
    if step in (0, 7):
        batch[2, 4] = float("nan")
        if "leave" in sys.argv:
            continue
    loss = (net["dec"](net["enc"](batch[:, :4])) - batch[:, 4:]).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(net.state_dict(), sys.argv[1])
"""


def test_under_steady_run_a_container_is_heard_from_the_first_step_on(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "train.py").write_text(_PROGRAM)
    steady = [sys.executable, "-m", "steadygrad.commands", "run", "--run-dir", str(tmp_path / "run"), "train.py"]
    for command in ([sys.executable, "train.py", "wanted.pt", "leave"], [*steady, "found.pt"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    assert differing(torch.load(tmp_path / "wanted.pt"), torch.load(tmp_path / "found.pt")) == []


def test_a_model_that_only_vmap_and_grad_call_is_guarded_without_a_fault_of_ours() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    policy = sg.Policy.named("balanced").but(snapshot_every=4)

    def loss_of(weights: Any, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (row,)).square().mean()

    def adapted(row: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())
        slopes = torch.func.grad(loss_of)(weights, row)
        return loss_of({name: weight - 0.1 * slopes[name] for name, weight in weights.items()}, row)

    guard = sg.attach(optimizer, model=model, policy=policy)
    for step in range(20):
        rows = torch.randn(6, 4)
        if step == 13:
            rows[2, 1] = math.nan
        torch.func.vmap(adapted)(rows).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    summary = guard.summary()
    assert (summary["applied"], summary["skipped"], summary["guard_faults"]) == (19, 1, {})
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
