"""Guarantee 2: no bad update is applied, also if the update itself makes the bad value out of finite gradients."""

from __future__ import annotations

import pytest
from drivers import GUARD, RANKS, plain, trained
from registry import guarantee
from scenario import FORMS, SHORT, Result, Scenario

KINDS = ("nan_input", "inf_loss", "nan_gradient")
BY_FORM = {
    f"{kind}, {form}": Scenario(steps=9, optimizer=form, faults={4: kind}) for form in FORMS for kind in KINDS
}  # fmt: skip
MADE_BY_THE_UPDATE = {
    "half precision, adamw": Scenario(model="half", faults={0: "zero_column"}, scheduler=False),
    "half precision, adamw_foreach": Scenario(
        model="half", faults={0: "zero_column"}, scheduler=False, optimizer="adamw_foreach"
    ),
    "a custom optimizer": Scenario(model="linear", optimizer="divides", faults={5: "zero_column"}),
    "a custom optimizer, first step": Scenario(model="linear", optimizer="divides", faults={0: "zero_column"}),
}
UNFROZEN = {
    "unfrozen": Scenario(changes={4: "unfreeze"}, faults={7: "nan_gradient"}),
    "added": Scenario(changes={4: "add_group"}, faults={7: "nan_gradient"}, scheduler=False),
}
NAN_WEIGHTS = {"nan weight": Scenario(steps=16, changes={9: "nan_weight"})}
SHARDED = {kind: Scenario(sharding="fsdp2", faults={4: kind}, fault_rank=1) for kind in KINDS}


def check_finite_and_reported(found: Result) -> None:
    for each in [found, *found.others]:
        assert each.error in (None, "TrainingHalted"), each.message
        assert each.non_finite == []
        assert each.incidents != []


@pytest.mark.parametrize("form", [f if f in SHORT else pytest.param(f, marks=pytest.mark.slow) for f in FORMS])
@pytest.mark.parametrize("kind", KINDS)
@guarantee("G2")
def test_a_non_finite_loss_or_gradient_never_reaches_the_weights(entry: str, kind: str, form: str) -> None:
    check_finite_and_reported(trained(entry, BY_FORM, f"{kind}, {form}"))


@pytest.mark.parametrize("kind", MADE_BY_THE_UPDATE)
@guarantee("G2")
def test_an_update_that_makes_a_nan_from_finite_gradients_is_undone_and_reported(entry: str, kind: str) -> None:
    check_finite_and_reported(trained(entry, MADE_BY_THE_UPDATE, kind))


@pytest.mark.parametrize("kind", MADE_BY_THE_UPDATE)
def test_the_same_update_poisons_the_plain_loop(kind: str) -> None:
    """Else the test above would show nothing."""
    scenario = MADE_BY_THE_UPDATE[kind]
    assert any(name.startswith("weight") for name in plain(GUARD, scenario).non_finite)
    assert plain(GUARD, scenario.but(faults={})).non_finite == []


@pytest.mark.parametrize("kind", UNFROZEN)
@guarantee("G2")
def test_a_nan_gradient_of_a_parameter_that_came_later_is_refused(entry: str, kind: str) -> None:
    check_finite_and_reported(trained(entry, UNFROZEN, kind))


@guarantee("G2")
def test_weights_that_turn_bad_between_two_steps_are_restored_or_the_run_halts(entry: str) -> None:
    found = trained(entry, NAN_WEIGHTS, "nan weight")
    for each in [found, *found.others]:
        assert each.incidents != []
        assert each.non_finite == [] or each.error == "TrainingHalted"
        assert "last good" not in each.said or each.non_finite == []


@pytest.mark.parametrize("kind", KINDS)
@guarantee("G2", entries=[RANKS])
def test_a_bad_batch_of_one_rank_never_reaches_the_shards_of_any(entry: str, kind: str) -> None:
    check_finite_and_reported(trained(entry, SHARDED, kind))
