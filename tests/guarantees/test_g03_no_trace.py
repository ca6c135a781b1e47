"""Guarantee 3: after a skipped batch everything is as in a run that never had it."""

from __future__ import annotations

import pytest
from drivers import (
    ACCELERATE,
    ENTRIES,
    GUARD,
    LIGHTNING,
    OPTIMIZER,
    RANKS,
    RUN,
    TRAINER,
    plain_all,
    train,
    trained,
    without_faults,
)
from registry import guarantee
from scenario import FORMS, SHORT, Scenario, differing

THREE = {3: "nan_input", 7: "nan_gradient", 11: "inf_loss"}
COMMON = {
    **{form: Scenario(steps=16, optimizer=form, faults=THREE) for form in FORMS},
    "averaged": Scenario(ema=True, faults={5: "nan_input"}),
    "drawn": Scenario(augment=True, faults={5: "nan_input"}),
}
ACCUMULATED = {"accumulated": Scenario(steps=16, accumulate=2, faults={6: "nan_input"})}
# Guard keeps the good micro-batch of a window, so there the run without the bad one has one micro-batch less.
ACCUMULATED_IN_GUARD = {"accumulated": Scenario(steps=17, accumulate=2, faults={6: "nan_input"})}
SCALED = {"scaled": Scenario(scaler=True, faults={5: "nan_input"}, steps=16)}
UNDONE = {
    "half precision": Scenario(model="half", faults={0: "zero_column"}, scheduler=False),
    "a custom optimizer": Scenario(model="linear", optimizer="divides", faults={5: "zero_column"}),
}
SHARDED = {form: Scenario(sharding="fsdp2", steps=16, optimizer=form, faults=THREE, fault_rank=1) for form in FORMS}
LATE = {
    "drawn late": Scenario(
        augment=True, faults={5: "nan_input"}, optimizer="adamw_fused", options={"settle": "late"}
    )
}  # fmt: skip

TOO_HIGH = Scenario(steps=44, rate=2e3, scheduler=False)
_BY_THE_LOOP = "; a moving average that the loop updates by itself is not held back (stated)"


def check_no_trace(entry: str, group: dict[str, Scenario], name: str, leaving_out: tuple[str, ...] = ()) -> None:
    found = trained(entry, group, name)
    wanted = plain_all(entry, [without_faults(entry, scenario) for scenario in group.values()])[list(group).index(name)]
    for one, other in zip([found, *found.others], [wanted, *wanted.others], strict=True):
        assert (one.error, other.error) == (None, None), one.message
        assert differing(one, other, leaving_out=leaving_out) == []
    assert found.summary["skipped"] > 0


@pytest.mark.parametrize("form", [f if f in SHORT else pytest.param(f, marks=pytest.mark.slow) for f in FORMS])
@guarantee("G3")
def test_bad_batches_leave_weights_moments_counts_schedule_statistics_and_random_numbers_alone(
    entry: str, form: str
) -> None:
    check_no_trace(entry, COMMON, form)


@guarantee("G3", {e: "yes; the whole accumulation window is skipped" for e in ENTRIES if e not in (GUARD, RANKS)})
def test_a_bad_micro_batch_leaves_no_trace_in_the_accumulation_window(entry: str) -> None:
    check_no_trace(entry, ACCUMULATED_IN_GUARD if entry in (GUARD, RANKS) else ACCUMULATED, "accumulated")


@guarantee("G3", {RUN: "yes; of moving averages only `AveragedModel` is held back"}, entries=[GUARD, RUN, RANKS])
def test_a_moving_average_advances_only_with_applied_updates(entry: str) -> None:
    check_no_trace(entry, COMMON, "averaged")


@guarantee("G3", dict.fromkeys((OPTIMIZER, TRAINER, LIGHTNING, ACCELERATE), "yes" + _BY_THE_LOOP),
           entries=[OPTIMIZER, TRAINER, LIGHTNING, ACCELERATE])  # fmt: skip
def test_a_moving_average_of_the_loop_is_either_held_back_or_said_not_to_be(entry: str) -> None:
    found = train(entry, COMMON["averaged"])
    wanted = plain_all(entry, [without_faults(entry, COMMON["averaged"])])[0]
    assert differing(found, wanted, leaving_out=("ema.",)) == []
    assert differing(found, wanted) == [] or "moving average" in found.said


@guarantee("G3", {OPTIMIZER: "yes; without `model=` running statistics and random numbers are not "
                             "restored (stated at the start)"}, entries=[OPTIMIZER])  # fmt: skip
def test_without_the_model_it_is_said_that_buffers_and_random_numbers_are_not_restored(entry: str) -> None:
    scenario = Scenario(faults={5: "nan_input"}, give_model=False)
    found = train(entry, scenario)
    wanted = plain_all(entry, [without_faults(entry, scenario)])[0]
    assert differing(found, wanted, leaving_out=("buffer.", "rng.", "weight.", "optimizer.")) == []
    assert not any(name.startswith(("weight.", "optimizer.")) for name in found.non_finite)
    sentence = next((line for line in found.log.splitlines() if "model" in line and "not restored" in line), "")
    assert "running statistics" in sentence or "buffers" in sentence
    assert "random number" in sentence


@guarantee("G3", entries=[GUARD, OPTIMIZER, RUN])
def test_a_bad_batch_leaves_a_gradient_scaler_as_a_run_without_it(entry: str) -> None:
    """A scaler of the loop would lower its scale at a bad batch whatever the reason."""
    check_no_trace(entry, SCALED, "scaled")


@pytest.mark.parametrize("kind", UNDONE)
@guarantee("G3")
def test_an_update_that_was_undone_leaves_no_trace(entry: str, kind: str) -> None:
    check_no_trace(entry, UNDONE, kind)


@pytest.mark.parametrize("form", ["sgd", "adamw", "adamw_foreach"])
@guarantee("G3", entries=[RANKS])
def test_a_bad_batch_of_one_sharded_rank_leaves_no_trace_on_any(entry: str, form: str) -> None:
    check_no_trace(entry, {name: SHARDED[name] for name in ("sgd", "adamw", "adamw_foreach")}, form)


@guarantee("H", entries=[GUARD, OPTIMIZER, RUN, RANKS])
def test_what_the_loop_draws_after_a_skipped_batch_is_what_it_would_draw_without_it(entry: str) -> None:
    """The data draws from the global generator: a skip gives back what forward drew and not what the loop drew."""
    check_no_trace(entry, COMMON, "drawn")


@guarantee("H")
def test_no_random_number_of_the_loop_comes_twice_after_a_skip(entry: str) -> None:
    found = trained(entry, COMMON, "drawn")
    noise = [each.partition(":")[2] for each in found.drawn]
    assert len(set(noise)) == len(noise) >= 12


@guarantee("H", entries=[GUARD])
def test_a_skip_that_is_settled_late_does_not_rewind_what_the_loop_drew(entry: str) -> None:
    found = trained(entry, LATE, "drawn late")
    noise = [each.partition(":")[2] for each in found.drawn]
    assert len(set(noise)) == len(noise) == 12
    assert found.summary["skipped"] == 1


@guarantee("G3", entries=[GUARD, TRAINER, LIGHTNING, ACCELERATE])
def test_what_follows_a_trial_of_rates_is_the_training_with_that_rate_from_the_start(entry: str) -> None:
    found = train(entry, TOO_HIGH)
    assert found.error is None, found.message
    assert found.summary["rolled_back"] == 1
    factor = found.summary["lr_factor"]
    assert factor < 1.0
    wanted = plain_all(entry, [TOO_HIGH.but(rate=TOO_HIGH.rate * factor)])[0]
    assert differing(found, wanted, leaving_out=("optimizer.groups",)) == []  # these have the rate as it was asked for


@guarantee("G3", entries=[GUARD, TRAINER, LIGHTNING, ACCELERATE])
def test_no_batch_is_lost_that_was_refused_for_too_high_a_rate(entry: str) -> None:
    found = train(entry, TOO_HIGH.but(rate=3e4))
    assert found.error is None, found.message
    assert found.summary["skipped"] > 4
    assert found.summary["lr_factor"] < 1.0
    wanted = plain_all(entry, [TOO_HIGH.but(rate=1.0)])[0]
    counts = [name for name in wanted.state if name.endswith((".step", "num_batches_tracked"))]
    assert len(counts) > 3
    assert [name for name in counts if found.state[name] != wanted.state[name]] == []
