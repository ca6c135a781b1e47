"""Guarantee 5: every skip, by the guard or by the loop, is journaled, counted and shown, and ends in a halt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from drivers import GUARD, OPTIMIZER, RANKS, RUN, plain_all, train, without_faults
from registry import guarantee
from scenario import ROWS, Result, Scenario, differing

from steadygrad.journal import read_incidents, read_steps

ONE_BAD = Scenario(faults={5: "nan_input"})
FOR_GOOD = Scenario(steps=20, faults=dict.fromkeys(range(4, 20), "nan_input"))
LOOP_SKIPS = Scenario(faults={5: "nan_input", 8: "nan_input"}, skips_itself=True)
_NOT_SEEN = (
    "yes; a batch that the loop skips itself is seen if its loss is in a variable or `optimizer.zero_grad()` clears "
    "its gradients (stated at the start)"
)


def steps_of(incidents: list[dict[str, Any]]) -> set[int]:
    return {step for each in incidents for step in range(each["first_step"], each["last_step"] + 1)}


@guarantee("G5")
def test_a_skip_is_journaled_counted_and_shown(entry: str, tmp_path: Path) -> None:
    found = train(entry, ONE_BAD, tmp_path / "run")
    assert found.error is None, found.message
    assert (found.summary["steps"], found.summary["applied"], found.summary["skipped"]) == (12, 11, 1)
    assert steps_of(found.incidents) == {5}
    assert [each.first_step for each in read_incidents(tmp_path / "run")] == [5]
    rows = {row.step: row for row in read_steps(tmp_path / "run") if row.rank == 0}
    assert [step for step, row in rows.items() if not row.applied] == [5]
    assert len(rows) == 12
    assert "step 5" in found.said


@guarantee("G5")
def test_ten_non_finite_steps_in_a_row_halt_and_the_weights_are_the_last_good_ones(entry: str) -> None:
    found = train(entry, FOR_GOOD.but(catch=entry != RUN))
    wanted = plain_all(entry, [without_faults(entry, FOR_GOOD)])[0]
    for one, other in zip([found, *found.others], [wanted, *wanted.others], strict=True):
        assert one.error == "TrainingHalted", one.message
        assert differing(one, other, leaving_out=("rng.",)) == []
    assert found.summary["halted"]
    assert found.summary["skipped"] == 10
    assert len(found.drawn) < FOR_GOOD.steps * (1 if len(found.drawn) < ROWS * 5 else ROWS)
    if entry == RUN:
        assert found.exit == 23


@guarantee("G5", {OPTIMIZER: _NOT_SEEN})
def test_a_batch_that_the_loop_skips_itself_is_an_incident_marked_so(entry: str) -> None:
    if entry == RANKS:
        # All ranks must skip alike: a loss_fn that returns None on one alone is refused with a sentence.
        found = train(entry, LOOP_SKIPS)
        assert found.error is None or "rank" in found.message
        if found.error is not None:
            return
    found = train(entry, LOOP_SKIPS)
    assert found.error is None, found.message
    assert len(found.incidents) >= 1
    assert "skipped by the program" in "".join(str(each) for each in found.incidents)
    assert found.non_finite == [] or all(name.startswith("buffer.") for name in found.non_finite)
    assert "all applied" not in found.said


@guarantee("G5", entries=[GUARD, OPTIMIZER, RUN])
def test_a_step_that_a_gradient_scaler_drops_is_counted(entry: str) -> None:
    found = train(entry, ONE_BAD.but(scaler=True))
    assert found.error is None, found.message
    assert found.summary["skipped"] + found.summary["overflows"] >= 1
    assert found.summary["applied"] == 11


@pytest.mark.parametrize("kind", ["inf_loss", "nan_gradient"])
@guarantee("G5", entries=[GUARD])
def test_a_budget_is_not_renewed_by_the_kind_of_the_fault(entry: str, kind: str) -> None:
    mixed = {step: ("nan_input" if step % 2 else kind) for step in range(4, 20)}
    found: Result = train(entry, FOR_GOOD.but(faults=mixed))
    assert found.error == "TrainingHalted"
    assert found.summary["skipped"] == 10
    assert math.isfinite(found.summary["success_rate"])
