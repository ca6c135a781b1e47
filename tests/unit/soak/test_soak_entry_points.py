"""A guard with default settings leaves rough but healthy runs alone, and does not leave sick ones alone.

A handful of regimes, shorter than in `make soak`, which runs all of them at every entry point.
"""

from __future__ import annotations

from functools import cache

import pytest
from soak.check import disturbances, omissions, unreported
from soak.entry_points import entry_point
from soak.observed import Observed
from soak.programs import Builder
from soak.runner import Plain, run_plainly
from soak.sick import SICK_STEPS

STEPS = 300
HANDFUL = (
    "exact_regression",
    "classes_in_turn",
    "unequal_tasks",
    "zero_for_long",
    "adversarial_pair",
    "gradual_unfreezing",
    "dropped_layers",
    "searched_loss_scale",
)
POISONED_STEPS = 150


@cache
def alone(name: str, steps: int) -> Plain:
    return run_plainly(Builder(name, 0), steps)


def guarded(at: str, name: str, steps: int) -> Observed:
    return entry_point(at).guarded(Builder(name, 0), steps)


@pytest.mark.parametrize("name", HANDFUL)
@pytest.mark.parametrize("at", ["guard", "attach"])
def test_a_rough_but_healthy_run_is_left_alone(at: str, name: str) -> None:
    plain = alone(name, STEPS)
    assert plain.healthy
    assert disturbances(plain.state, guarded(at, name, STEPS), STEPS) == []


def test_a_rough_but_healthy_program_is_left_alone_by_steady_run() -> None:
    plain = alone("classes_in_turn", STEPS)
    assert disturbances(plain.state, guarded("run", "classes_in_turn", STEPS), STEPS) == []


@pytest.mark.parametrize("name", ["nan_in_cosine_restarts", "update_divides_by_zero", "gradient_of_root"])
@pytest.mark.parametrize("at", ["guard", "attach"])
def test_a_run_that_would_end_non_finite_is_not_left_alone(at: str, name: str) -> None:
    plain = alone(name, POISONED_STEPS)
    assert omissions(plain.bad, guarded(at, name, POISONED_STEPS)) == []


def test_a_finite_divergence_is_reported() -> None:
    assert unreported(guarded("guard", "exploding_regression", SICK_STEPS)) == []


# -- the check itself can fail


def untouched() -> Observed:
    return Observed(state={"weight": "a", "moment": "b"}, bad=[], counts={"steps": 10, "applied": 10})


def test_the_check_passes_a_run_that_nothing_happened_to() -> None:
    assert disturbances(untouched().state, untouched(), 10) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"counts": {"steps": 10, "skipped": 3, "overflows": 1}}, "refused 2"),
        ({"counts": {"steps": 10, "rolled_back": 1}}, "rolled back 1"),
        ({"factors": {"lr_factor": 1.0, "smallest lr_factor": 0.5}}, "lr_factor 0.5 / 1"),
        ({"factors": {"clip_factor": 0.3, "smallest clip_factor": 0.3}}, "clip_factor 0.3 / 0.3"),
        ({"halted": "ten bad steps"}, "halted"),
        ({"faults": ["journal"]}, "guard failed in journal"),
        ({"messages": {"step * refused: the loss is *": 2}}, "2 messages claim a refusal"),
        ({"counts": {"steps": 4}}, "only 4 of 10 updates were guarded"),
        ({"state": {"weight": "a", "moment": "c"}}, "1 of 2 end values differ, first moment"),
    ],
)
def test_the_check_names_each_disturbance(change: dict[str, object], found: str) -> None:
    observed = untouched()
    for name, value in change.items():
        setattr(observed, name, value)
    assert disturbances(untouched().state, observed, 10) == [found]


def test_a_message_that_only_mentions_what_is_not_refused_is_no_claim() -> None:
    observed = untouched()
    observed.messages = {"LBFGS is watched, not refused": 1, "attached to Trainer": 1}
    assert disturbances(untouched().state, observed, 10) == []


def test_a_guard_that_does_nothing_about_a_sick_run_is_found_out() -> None:
    observed = untouched()
    observed.bad = ["weight"]
    assert omissions(["weight"], observed) == [
        "nothing was refused, rolled back or halted", "1 end values are not finite, first weight", "no incident",
    ]  # fmt: skip
    assert omissions([], observed)[0] == "the plain run stayed finite, so this twin is not sick"
    assert unreported(untouched()) == ["no incident and no SY203 finding"]
