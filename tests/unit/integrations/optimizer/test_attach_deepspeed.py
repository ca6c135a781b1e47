"""A DeepSpeed engine is watched and not guarded. DeepSpeed itself is not needed: an engine with its public names is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.journal import read_events
from steadygrad.journal.steps.step_reader import read_steps


class DeepSpeedEngine(nn.Module):
    """What DeepSpeed's engine shows of itself, training for real and skipping a non-finite update as it does."""

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.inner = torch.optim.SGD(module.parameters(), lr=0.1)
        self.skipped_steps = 0
        self._norm = 0.0

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.module(batch).square().mean()
        return out

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def get_global_grad_norm(self) -> float:
        return self._norm

    def step(self) -> None:
        self._norm = float(nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None]))
        if torch.isfinite(torch.tensor(self._norm)):
            self.inner.step()
        else:
            self.skipped_steps += 1
        self.inner.zero_grad()


def train(engine: Any, steps: int, bad: int) -> None:
    for index in range(steps):
        batch = torch.ones(2, 3) * (float("nan") if index == bad else 1.0)
        engine.backward(engine(batch))
        engine.step()


def test_the_steps_that_deepspeed_skips_are_read_and_kept(tmp_path: Path) -> None:
    engine = DeepSpeedEngine(nn.Linear(3, 1))
    with sg.attach(engine, run_dir=tmp_path / "run") as monitor:
        train(engine, 6, bad=2)
        summary = monitor.summary()
    assert (summary["steps"], summary["skipped"], summary["guarded"]) == (6, 1, False)
    assert summary["guard_faults"] == {}
    records = list(read_steps(tmp_path / "run"))
    assert [record.applied for record in records] == [True, True, False, True, True, True]
    assert records[0].grad_norm > 0
    [event] = [event for event in read_events(tmp_path / "run") if event.kind == "skipped_by_deepspeed"]
    assert event.data["step"] == 2


def test_watching_leaves_the_engine_as_it_is_and_lets_it_go() -> None:
    torch.manual_seed(0)
    watched, alone = DeepSpeedEngine(nn.Linear(3, 1)), DeepSpeedEngine(nn.Linear(3, 1))
    alone.module.load_state_dict(watched.module.state_dict())
    with sg.attach(watched):
        train(watched, 4, bad=1)
    train(alone, 4, bad=1)
    for ours, theirs in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert type(watched) is DeepSpeedEngine


def test_guarding_a_deepspeed_engine_is_refused_with_what_to_do_instead() -> None:
    engine = DeepSpeedEngine(nn.Linear(3, 1))
    with pytest.raises(sg.UsageError, match="can only be watched"):
        sg.attach(engine, policy="balanced")
    with pytest.raises(sg.UsageError, match="Watch it with"):
        sg.Guard(engine, engine.inner, lambda model, batch: model(batch))
