"""A logits processor that had to repair NaN logits stops the update that would learn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.journal import read_events
from steadygrad.numerics import NumericalStabilityLogitsProcessor, board, masked_cross_entropy

POLICY = sg.Policy.named("balanced").but(escalation=())


@pytest.fixture(autouse=True)
def _clean_board() -> Iterator[None]:
    board().take()
    yield
    board().take()


def make() -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, optim.AdamW(model.parameters(), lr=0.01, fused=True)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def generate(*, sick: bool) -> None:
    scores = torch.zeros(2, 5)
    if sick:
        scores[1, 3] = math.nan
    NumericalStabilityLogitsProcessor()(torch.zeros(2, 1, dtype=torch.long), scores)


@pytest.mark.parametrize("settle", ["now", "late"])
def test_an_update_after_repaired_logits_is_refused_and_leaves_no_trace(settle: str, tmp_path: Path) -> None:
    batches = [torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) for i in range(6)]

    def run(sick_at: int | None, run_dir: Path) -> tuple[dict[str, Tensor], sg.Guard]:
        model, optimizer = make()
        with sg.Guard(model, optimizer, loss_fn, settle=settle, policy=POLICY, run_dir=run_dir) as guard:
            for number, batch in enumerate(batches):
                if number == sick_at:
                    generate(sick=True)
                    guard.step(batches[0] * 3)
                generate(sick=False)
                guard.step(batch)
        return model.state_dict(), guard

    expected, _ = run(None, tmp_path / "well")
    found, guard = run(3, tmp_path / "sick")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert guard.summary()["skipped"] == 1
    (incident,) = guard.incidents
    assert [finding.code for finding in incident.findings] == ["SY501"]
    assert "repaired" in incident.headline
    # The step's own numbers were sound, so there is nothing in it for the clinic to find.
    assert incident.diagnosis is None


def test_a_policy_that_only_observes_applies_it_and_records_it(tmp_path: Path) -> None:
    model, optimizer = make()
    with sg.Guard(model, optimizer, loss_fn, policy="observe", run_dir=tmp_path) as guard:
        generate(sick=True)
        guard.step(torch.randn(8, 4))
        assert guard.summary()["applied"] == 1
        assert any("SY501" in record.flags for record in guard._log.recent)


def test_a_note_on_the_board_is_journaled_and_refuses_nothing(tmp_path: Path) -> None:
    model, optimizer = make()

    def empty(model: nn.Module, batch: Tensor) -> Tensor:
        labels = torch.full((8,), -100)
        return masked_cross_entropy(model(batch), labels) + loss_fn(model, batch)

    with sg.Guard(model, optimizer, empty, settle="now", run_dir=tmp_path, policy=POLICY) as guard:
        guard.step(torch.randn(8, 4))
        guard.step(torch.randn(8, 4))
        assert guard.summary()["applied"] == 2
        assert any("SY503" in record.flags for record in guard._log.recent)
    assert [event for event in read_events(tmp_path) if event.kind == "decision"]


def test_what_was_posted_before_a_run_began_is_journaled_and_binds_none_of_its_steps(tmp_path: Path) -> None:
    generate(sick=True)  # by a run that nobody guarded
    model, optimizer = make()
    with sg.Guard(model, optimizer, loss_fn, policy=POLICY, run_dir=tmp_path / "run") as guard:
        assert guard.step(torch.ones(8, 4)).applied
    told = [event for event in read_events(tmp_path / "run") if event.kind == "posted_earlier"]
    assert [event.data["code"] for event in told] == ["SY501"]
