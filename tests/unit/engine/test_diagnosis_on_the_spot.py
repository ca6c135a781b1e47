"""Diagnosis while the guard runs: it names the origin, and training goes on as if it had not been called."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import batches, differing, run_guarded, run_plain, setup, state_of
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.journal import read_incidents, read_quarantine


@pytest.mark.parametrize("mode", ["now", "late"])
def test_a_diagnosis_leaves_no_trace(mode: str) -> None:
    data = batches(12)
    bad = data[0].clone()
    bad[2, 3] = math.nan
    it: Any = run_guarded([*data[:6], bad, *data[6:]], settle=mode, diagnose="auto")
    assert differing(state_of(run_plain(data)), state_of(it)) == []
    diagnosis = it.guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause.slug == "bad_input"
    assert diagnosis.rows == (2,)


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return (hidden * mask).sum(1) / mask.sum(1)


def ratio_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"], batch["mask"]) - batch["y"]).pow(2).mean()


def test_an_empty_mask_is_traced_to_its_division_line_row_and_sample(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [
        {
            "x": torch.randn(5, 4, generator=generator),
            "mask": torch.ones(5, 4),
            "y": torch.randn(5, generator=generator),
            "sample_id": torch.arange(5) + 100 * i,
        }
        for i in range(8)
    ]
    data[5]["mask"][3] = 0.0
    model = Ratio()
    with sg.Guard(model, torch.optim.Adam(model.parameters()), ratio_loss, run_dir=tmp_path / "run") as guard:
        for batch in data:
            guard.step(batch)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.origin is not None
    assert (diagnosis.phase, diagnosis.origin.op) == ("forward", "div")
    assert diagnosis.origin.code_line is not None
    assert "mask.sum(1)" in diagnosis.origin.code_line
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "zero_division"
    assert diagnosis.rows == (3,)
    assert diagnosis.sample_ids == ("503",)
    assert any(trial.remedy.slug == "eps" for trial in diagnosis.remedies)
    assert not any(trial.remedy.slug == "clip" for trial in diagnosis.remedies)
    (kept,) = read_incidents(tmp_path / "run")
    assert kept.diagnosis is not None
    assert kept.diagnosis.cause == diagnosis.cause
    guilty = [entry for entry in read_quarantine(tmp_path / "run") if entry.rows]
    assert [(entry.batch_key, tuple(entry.rows), tuple(entry.sample_ids)) for entry in guilty] == [
        ("5", (3,), ("503",))
    ]


def test_a_fault_in_the_diagnosis_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the clinic is closed")

    monkeypatch.setattr("steadygrad.diagnosis.diagnose.diagnose", broken)
    it = setup()
    data = batches(6)
    data[2][0, 0] = math.nan
    guard = sg.Guard(it.model, it.optimizer, it.loss_fn)
    for batch in data:
        guard.step(batch)
    assert guard.summary()["applied"] == 5
    assert guard.summary()["guard_faults"] == {"diagnosis": 1}
    assert guard.incidents[0].diagnosis is None


def test_a_bad_micro_batch_with_finite_gradients_is_not_taken_for_scrubbed_ones() -> None:
    """All labels missing: the loss is 0 / 0 and its gradient exactly zero, beside a healthy micro-batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    data = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(8)]
    data[5] = (data[5][0], torch.full((5,), -100))
    guard = sg.Guard(model, torch.optim.AdamW(model.parameters()), loss_fn, accumulate=2)
    for batch in data:
        guard.step(batch)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "empty_reduction"
    assert diagnosis.phase == "loss"
    guard.close()


def test_an_epsilon_that_vanishes_is_caught_in_the_update_and_named() -> None:
    """Loss and gradients are finite; the optimizer itself writes the NaN, which no gradient check can see."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).half()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-8)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch).float()
        return (out[:, 1] ** 2 + 0.0 * out[:, 0]).mean()  # the first unit's gradient is zero: 0 / (sqrt(0) + 0)

    guard = sg.Guard(model, optimizer, loss_fn, policy=sg.Policy.named("balanced").but(escalation=()))
    for _ in range(6):
        guard.step(torch.randn(8, 4).half())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "optimizer_eps_underflow"
    assert diagnosis.phase == "optimizer"
    assert "optimizer_eps" in {trial.remedy.slug for trial in diagnosis.remedies}
    guard.close()
