"""A step whose random numbers were to blame does not take the next ones with it."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.engine.recovery.rng_retry import RngRetry
from steadygrad.journal import read_events

POLICY = sg.Policy.named("balanced").but(escalation=())


def make() -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, optim.AdamW(model.parameters(), lr=0.01, fused=True)


def diffusion(model: nn.Module, batch: Tensor) -> Tensor:
    """A time drawn in [0, 1) and rounded as half precision does: now and then it is 1, and 1 / (1 - t) blows up."""
    time = (torch.rand(len(batch)) * 20).round() / 20
    return ((model(batch).squeeze(1) - batch.sum(1)).square() / (1 - time)).mean()


def unlucky_seed(size: int) -> int:
    """A seed whose first draw holds a time of 1."""
    for seed in range(10_000):
        generator = torch.Generator().manual_seed(seed)
        if bool(((torch.rand(size, generator=generator) * 20).round() == 20).any()):
            return seed
    raise AssertionError("no such seed")


def train(settle: str, run_dir: Path) -> dict[str, Any]:
    """Thirty batches, the first with an unlucky draw. A halt ends it early."""
    model, optimizer = make()
    batches = [torch.randn(2, 4) for _ in range(30)]
    torch.manual_seed(unlucky_seed(2))
    with sg.Guard(model, optimizer, diffusion, settle=settle, run_dir=run_dir, policy=POLICY, diagnose="off") as guard:
        outcomes = []
        with contextlib.suppress(sg.TrainingHalted):
            for batch in batches:
                outcomes.append(guard.step(batch))
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
        summary = guard.summary()
        assert sum(outcome.applied for outcome in outcomes) == summary["applied"]
        return summary


@pytest.mark.parametrize("settle", ["now", "late"])
def test_a_run_whose_noise_is_at_fault_goes_on(settle: str, tmp_path: Path) -> None:
    summary = train(settle, tmp_path)
    moved_on = [event for event in read_events(tmp_path) if event.kind == "random_numbers_moved_on"]
    assert not summary["halted"]
    assert moved_on
    # A loss with so long a tail also has its spikes; what matters is that most batches land.
    assert summary["applied"] > 15


def test_without_the_second_try_the_same_numbers_break_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above: it is the other numbers that help."""
    monkeypatch.setattr(RngRetry, "at_fault", lambda *_: None)
    summary = train("now", tmp_path)
    assert summary["applied"] == 0
    assert summary["halted"]


@pytest.mark.parametrize("settle", ["now", "late"])
@pytest.mark.parametrize("streak", [2, 5])
def test_bad_batches_in_a_row_still_leave_no_trace(settle: str, streak: int) -> None:
    """With other numbers they are as bad, so the random state is put back each time."""

    def noisy(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch + 0.1 * torch.randn_like(batch)).squeeze(1) - batch.sum(1)).square().log().mean()

    def run(batches: list[Tensor]) -> dict[str, Any]:
        model, optimizer = make()
        torch.manual_seed(5)
        with sg.Guard(model, optimizer, noisy, settle=settle, policy=POLICY, diagnose="off") as guard:
            for batch in batches:
                guard.step(batch)
        return {**model.state_dict(), "rng": torch.get_rng_state()}

    generator = torch.Generator().manual_seed(1)
    good = [torch.randn(8, 4, generator=generator) for _ in range(8)]
    huge = torch.full((8, 4), 3e38)
    expected, found = run(good), run([*good[:4], *[huge] * streak, *good[4:]])
    assert math.isfinite(float(huge.max()))
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
