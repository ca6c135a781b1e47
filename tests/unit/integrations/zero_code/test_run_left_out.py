"""A round that the program leaves out by an error of its own is reported if the error is about a non-finite value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Unusable(Exception):
    """What this program raises about a batch."""


def usable(loss: Tensor) -> Tensor:
    if not torch.isfinite(loss):
        raise Unusable
    return loss


def few_rows(loss: Tensor) -> Tensor:
    few_rows.calls += 1  # type: ignore[attr-defined]
    if few_rows.calls % 3 == 0:  # type: ignore[attr-defined]
        raise RuntimeError("too few rows")
    return loss


def train(data: list[Tensor], check: Any) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    model, left_out = nn.Linear(3, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in data:
        try:
            loss = check((model(x.log()) - x.sum(1, keepdim=True)).square().mean())
        except (Unusable, RuntimeError):
            left_out += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, left_out


def batches(count: int, *bad: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    data = [torch.rand(4, 3, generator=generator) + 0.5 for _ in range(count)]
    for place in bad:
        data[place][2, 1] = 0.0
    return data


def test_a_batch_left_out_by_the_programs_own_error_is_reported_with_line_and_row(watching: Any) -> None:
    plain, _ = train(batches(8, 4), usable)
    watch = watching(diagnose="auto")
    model, left_out = train(batches(8, 4), usable)
    assert left_out == 1
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    (incident,) = [incident for log in watch.ledger.log for incident in log.incidents]
    assert "skipped by the program: it raised Unusable" in incident.headline
    assert incident.diagnosis.origin.op == "log"
    assert incident.diagnosis.rows == (2,)
    assert "model(x.log())" in incident.diagnosis.origin.code_line
    assert watch.barrier.faults == {}


@pytest.mark.parametrize("rounds", [8, 40])
def test_rounds_left_out_for_other_reasons_are_not_reported_and_asked_about_three_times_at_most(
    watching: Any, rounds: int
) -> None:
    watch = watching(diagnose="auto")
    asked = []
    ask = watch.events._why_left_out
    watch.events._why_left_out = lambda: asked.append(1) or ask()
    few_rows.calls = 0  # type: ignore[attr-defined]
    _, left_out = train(batches(rounds), few_rows)
    assert left_out >= 2
    assert len(asked) <= 3
    assert few_rows.calls == rounds  # type: ignore[attr-defined]
    assert not [incident for log in watch.ledger.log for incident in log.incidents]
    assert watch.barrier.faults == {}


def rollout(model: nn.Module, calls: list[int]) -> None:
    """Values of states with gradients that no backward asks for, as in a rollout."""
    for _ in range(4):
        model(torch.ones(2, 3))
        calls.append(1)


def test_rounds_without_a_backward_are_not_run_again_where_no_error_is_handled(watching: Any, monkeypatch: Any) -> None:
    asked: list[int] = []
    watch = watching(diagnose="auto")
    monkeypatch.setattr(watch.events, "_why_left_out", lambda: asked.append(1))
    torch.manual_seed(0)
    model, calls = nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches(6):
        rollout(model, calls)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert len(calls) == 24
    assert asked == []


class Averaging(nn.Module):
    """Keeps a running mean of what it sees, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)
        self.register_buffer("mean", torch.ones(()))
        self.register_buffer("left_out", torch.zeros(()))
        self.register_buffer("never", torch.tensor(float("inf")))

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x).exp().mean()
        self.mean.mul_(0.9).add_(0.1 * out.detach())
        return out / self.mean


def skipping(data: list[Tensor], *, after_backward: bool) -> Averaging:
    torch.manual_seed(0)
    model = Averaging()
    nn.init.constant_(model.head.weight, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for x in data:
        loss = model(x)
        if after_backward:
            loss.backward()
        if not torch.isfinite(loss):
            model.left_out += 1
            optimizer.zero_grad()
            continue
        if not after_backward:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("after_backward", [False, True])
def test_a_buffer_that_a_batch_left_out_by_the_program_made_bad_is_restored_and_nothing_else(
    watching: Any, after_backward: bool
) -> None:
    good = [torch.rand(4, 3, generator=torch.Generator().manual_seed(n)) for n in range(8)]
    bad = [*good[:5], torch.full((4, 3), 1e30), *good[5:]]
    plain = skipping(good, after_backward=after_backward)
    assert not torch.isfinite(skipping(bad, after_backward=after_backward).mean)
    watch = watching()
    model = skipping(bad, after_backward=after_backward)
    assert torch.equal(model.mean, plain.mean)
    assert torch.equal(model.head.weight, plain.head.weight)
    assert float(model.left_out) == 1  # the program's own note of it stays
    assert bool(torch.isposinf(model.never))
    assert "mean" in watch.ledger.notices["restored_after_skip"]
    assert watch.barrier.faults == {}


def test_where_the_policy_only_observes_a_buffer_stays_as_the_program_left_it(watching: Any) -> None:
    watching(policy="observe")
    good = [torch.rand(4, 3, generator=torch.Generator().manual_seed(n)) for n in range(8)]
    model = skipping([*good[:5], torch.full((4, 3), 1e30), *good[5:]], after_backward=False)
    assert not torch.isfinite(model.mean)
