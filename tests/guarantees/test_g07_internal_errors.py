"""Guarantee 7: an error inside the package does not stop training; it is recorded, and the loop goes on.

The functions to break are found by watching a training: every function of the package that another of its functions
calls is a candidate, whatever its name is, except those that catch faults.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from drivers import RANKS, RUN, plain, train_all
from registry import guarantee
from scenario import Result, Scenario, differing

HEALTHY = Scenario(steps=8)
REFUSING = Scenario(steps=9, faults={5: "nan_input"}, diagnose="auto")
FEW = 12
TOGETHER = {RANKS: "yes; all ranks stand down together, or stop together where one fails in the middle of an exchange"}


def many(entry: str) -> int:
    """How many functions to break where there is time: all of them, or as many as the ranks' time limit allows."""
    return 60 if entry == RANKS else 10_000


def recorded(found: Result) -> bool:
    """Whether the fault stands in what the user is shown at the end."""
    return bool(found.summary.get("guard_faults") or found.summary.get("faults"))


def stopped_by(entry: str, count: int, tmp_path: Path) -> dict[str, str]:
    scenario = HEALTHY.but(breaks=f"sample:{count}", fault_rank=1 if entry == RANKS else None)
    wanted = plain(entry, HEALTHY.but(fault_rank=scenario.fault_rank))
    found = train_all(entry, [scenario], tmp_path / "run" if entry == RUN else None)
    assert len(found) >= min(count, 4)
    wrong = {}
    for each in found:
        assert each.called, each.message
        struck = each.struck or any(other.struck for other in each.others)
        said = recorded(each) or any(recorded(other) for other in each.others)
        if each.error is not None:
            wrong[each.called[0]] = f"stopped: {each.error}: {each.message[:120]}"
        elif different := differing(each, wanted):
            wrong[each.called[0]] = f"other bits: {different[:3]}"
        elif struck and not said:
            wrong[each.called[0]] = "not recorded"
    return wrong


def let_through_by(entry: str, count: int) -> dict[str, str]:
    scenario = REFUSING.but(breaks=f"sample:{count}:refused", fault_rank=1 if entry == RANKS else None)
    found = train_all(entry, [scenario])
    assert found
    wrong = {}
    for each in found:
        assert each.called, each.message
        if each.error is not None:
            wrong[each.called[0]] = f"stopped: {each.error}: {each.message[:120]}"
        elif bad := [name for name in each.non_finite if not name.startswith("buffer.")]:
            wrong[each.called[0]] = f"not finite: {bad[:3]}"
        elif each.struck and not recorded(each) and not each.examining:
            wrong[each.called[0]] = "not recorded"  # a diagnosis may instead say that it could not try something
    return wrong


@guarantee("G7", TOGETHER)
def test_an_internal_error_in_a_healthy_step_leaves_the_bits_of_the_plain_loop(entry: str, tmp_path: Path) -> None:
    assert stopped_by(entry, FEW, tmp_path) == {}


@guarantee("G7", TOGETHER)
def test_an_internal_error_while_a_step_is_refused_or_diagnosed_lets_nothing_bad_through(entry: str) -> None:
    assert let_through_by(entry, FEW) == {}


@pytest.mark.slow
@guarantee("G7")
def test_no_function_of_a_healthy_step_can_stop_training_by_failing(entry: str, tmp_path: Path) -> None:
    assert stopped_by(entry, many(entry), tmp_path) == {}


@pytest.mark.slow
@guarantee("G7")
def test_no_function_of_a_refused_step_can_stop_training_by_failing(entry: str) -> None:
    assert let_through_by(entry, many(entry)) == {}
