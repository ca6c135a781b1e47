"""The history: what is normal, learnt from finite, applied steps alone."""

from __future__ import annotations

import json
import math
import random
import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadygrad.detect.history import History
from steadygrad.detect.history.running_level import WINDOW, RunningLevel
from steadygrad.detect.judge_step import judge
from steadygrad.policy import Policy
from steadygrad.records import Reading

BALANCED = Policy.named("balanced").but(refuse_spikes=True)
finite = st.floats(min_value=-1e6, max_value=1e6)


def run(
    norms: list[float], losses: list[float] | None = None, *, policy: Policy = BALANCED
) -> tuple[History, list[int]]:
    """Guard a run of these numbers: which steps are refused?"""
    history, refused = History(), []
    for step, norm in enumerate(norms):
        limits = history.limits(policy)
        reading = Reading(
            step=step,
            loss=losses[step] if losses else 2.0,
            grad_norm=norm,
            grad_norm_limit=limits.grad_norm,
            loss_limit=limits.loss,
        )
        fatal = [found for found in judge(reading, history, policy) if found.severity == "fatal"]
        refused += [step] if fatal else []
        history.admit(reading, applied=not fatal)
    return history, refused


@given(st.lists(finite, min_size=1, max_size=300))
def test_level_agrees_with_the_standard_library_over_its_window(values: list[float]) -> None:
    level = RunningLevel()
    for value in values:
        level.admit(value)
    window = values[-WINDOW:]
    middle = statistics.median(window)
    assert level.median() == pytest.approx(middle)
    assert level.highest() == max(window)
    deviations = sorted(abs(value - middle) for value in window)
    assert level.spread() == pytest.approx(1.4826 * deviations[len(window) // 2], rel=1e-9, abs=1e-9)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1, max_size=20), st.randoms())
def test_no_non_finite_number_ever_enters_a_statistic(bad: list[float], rng: random.Random) -> None:
    clean, dirty = History(), History()
    for step in range(60):
        reading = Reading(step=step, loss=rng.uniform(1, 2), grad_norm=rng.uniform(0.5, 1.5))
        clean.admit(reading, applied=True)
        dirty.admit(reading, applied=True)
        if bad and rng.random() < 0.5:
            value = bad.pop()
            dirty.admit(Reading(step=step, loss=value, grad_norm=value), applied=rng.random() < 0.5)
    assert dirty.limits(BALANCED) == clean.limits(BALANCED)
    assert dirty.best_level == clean.best_level


def test_there_is_no_limit_before_there_are_enough_samples() -> None:
    history, _ = run([1.0] * (BALANCED.spike_min_samples - 1))
    assert history.limits(BALANCED).grad_norm == math.inf
    history, _ = run([1.0] * BALANCED.spike_min_samples)
    assert history.limits(BALANCED).grad_norm < math.inf


def test_the_limit_comes_nearer_as_more_is_known() -> None:
    few, many = run([1.0] * 8)[0].limits(BALANCED), run([1.0] * 128)[0].limits(BALANCED)
    assert few.grad_norm > 2 * many.grad_norm > 20.0


def test_one_finite_spike_costs_one_step() -> None:
    _, refused = run([1.0] * 40 + [500.0] + [1.0] * 40)
    assert refused == [40]


def test_a_new_level_is_accepted_after_a_few_refusals() -> None:
    _, refused = run([1.0] * 200 + [300.0] * 200)
    assert refused == list(range(200, 200 + BALANCED.spike_patience))


def test_many_scattered_spikes_are_taken_for_the_tail_of_a_noisy_run() -> None:
    norms = [300.0 if step > 150 and step % 6 == 5 else 1.0 + 0.01 * (step % 7) for step in range(600)]
    _, refused = run(norms)
    # One more than the share of the window that is believed to be spikes, then those that follow are let through.
    assert refused == [step for step in range(151, 600) if step % 6 == 5][: int(BALANCED.spike_tail_share * WINDOW) + 1]


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.5, 1.0, 1.5])
def test_noisy_norms_of_small_batches_are_never_refused(sigma: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        _, refused = run([math.exp(sigma * rng.gauss(0, 1)) for _ in range(400)])
        assert refused == []


def test_wild_and_falling_norms_of_warm_up_are_never_refused() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        norms = [math.exp(0.4 * rng.gauss(0, 1)) * (1 + 300 * math.exp(-step / 12)) for step in range(300)]
        assert run(norms)[1] == []


def test_steadily_growing_norms_are_never_refused() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        norms = [math.exp(0.3 * rng.gauss(0, 1)) * min(1000.0, 2 ** (step / 6)) for step in range(300)]
        assert run(norms)[1] == []


def test_a_high_falling_loss_and_a_hard_batch_are_never_refused() -> None:
    losses = [4000 * 0.9**step + 2.0 for step in range(100)]
    losses[80] = 12.0
    assert run([1.0] * 100, losses)[1] == []


def test_an_absurd_loss_is_refused() -> None:
    losses = [3.0 + 0.05 * (step % 4) for step in range(100)]
    losses[70] = 5000.0
    assert run([1.0] * 100, losses)[1] == [70]


def test_losses_around_zero_with_both_signs_are_never_refused() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        losses = [0.0] * 3 + [0.02 * rng.gauss(0, 1) / max(0.2, abs(rng.gauss(0, 1))) for _ in range(300)]
        assert run([1.0] * 303, losses)[1] == []


def test_a_norm_below_the_users_own_clip_is_no_spike() -> None:
    history, _ = run([1e-6] * 60)
    assert history.limits(BALANCED).grad_norm < 1e-4
    assert history.limits(BALANCED, floor=1.0).grad_norm == 1.0


def test_batches_with_a_zero_gradient_leave_the_level_alone() -> None:
    with_zeros, without = run([1.0, 0.0] * 30)[0], run([1.0] * 30)[0]
    assert with_zeros.limits(BALANCED).grad_norm == without.limits(BALANCED).grad_norm


def test_history_survives_a_round_trip_through_json() -> None:
    rng = random.Random(3)
    norms = [math.exp(0.3 * rng.gauss(0, 1)) for _ in range(150)] + [900.0, 950.0]
    history, _ = run(norms)
    again = History.from_plain(json.loads(json.dumps(history.to_plain(), allow_nan=False)))
    for step in range(40):
        reading = Reading(step=step, loss=2.0, grad_norm=900.0 if step < 5 else 1.0)
        for each in (history, again):
            each.admit(reading, applied=step >= 5)
        assert again.limits(BALANCED) == history.limits(BALANCED)
    assert again.to_plain() == history.to_plain()


def test_observing_reports_a_spike_although_nothing_was_compared_on_the_device() -> None:
    history, _ = run([1.0] * 64)
    reading = Reading(step=64, loss=2.0, grad_norm=1e4, grad_norm_limit=math.inf, loss_limit=math.inf)
    assert [found.code for found in judge(reading, history, Policy.named("observe"))] == ["SY201"]


def test_judging_and_remembering_a_healthy_step_is_cheap() -> None:
    """A bound of a few hundred microseconds a step, far above what is measured, so that a busy machine passes and a
    walk over all tensors' norms, or a sort of the window, does not."""
    history, rng = History(), random.Random(0)
    norms = [1.0] * 3000
    readings = [Reading(step=i, loss=2.0, grad_norm=rng.uniform(0.5, 2.0), norms=norms) for i in range(1000)]
    start = time.perf_counter()
    for reading in readings:
        history.limits(BALANCED)
        assert judge(reading, history, BALANCED) == ()
        history.admit(reading, applied=True)
    assert (time.perf_counter() - start) / len(readings) < 300e-6


def _diverges(losses: list[float], norms: list[float] | None = None) -> bool:
    history, seen = History(), False
    for step, loss in enumerate(losses):
        reading = Reading(step=step, loss=loss, grad_norm=norms[step] if norms else 1.0)
        seen |= any(found.code == "SY203" for found in judge(reading, history, BALANCED))
        history.admit(reading, applied=True)
    return seen


def test_a_loss_that_climbs_back_to_its_start_and_stays_is_divergence() -> None:
    falling = [1.5 + 7.0 * 0.97**step for step in range(150)]
    assert _diverges(falling + [8.6] * 20)
    assert not _diverges(falling + [8.6] * 5 + [1.6] * 30)


def test_a_fine_tuned_loss_that_blows_up_is_divergence_and_one_that_wanders_is_not() -> None:
    rng = random.Random(0)
    tuning = [1.8 + 0.1 * rng.gauss(0, 1) for _ in range(150)]
    assert _diverges(tuning + [9.0] * 20)
    assert not _diverges(tuning + [3.9] * 50)


def test_losses_of_two_networks_at_play_do_not_diverge() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        losses, level = [], 0.6
        for _ in range(3000):
            level = min(1.2, max(0.4, level + 0.02 * rng.gauss(0, 1)))
            losses.append(level + 0.03 * rng.gauss(0, 1))
        assert not _diverges(losses)


def test_a_runaway_shows_within_a_few_steps() -> None:
    growth = [2.0, 2.0, 2.1, 9.0, 60.0, 500.0, 4000.0, 3e4, 2e5]
    assert _diverges(growth, norms=growth)


def test_a_loss_that_starts_at_zero_and_grows_while_gradients_do_not_is_no_runaway() -> None:
    losses = [0.0, 1e-6, -1e-6] + [0.01 * (1 + step % 3) for step in range(100)]
    assert not _diverges(losses, norms=[1.0 + 0.1 * (step % 4) for step in range(103)])


def test_a_loss_that_is_zero_by_construction_has_no_limit_where_its_level_is_not_judged() -> None:
    history = History()
    for step in range(64):
        history.admit(Reading(step=step, loss=1e-8, grad_norm=1.0), applied=True)
    assert history.limits(BALANCED).loss < 1.8e-3
    assert history.limits(BALANCED.but(judge_loss_level=False)).loss == math.inf
    high = Reading(step=64, loss=1.8e-3, grad_norm=1.0)
    assert judge(high, history, BALANCED.but(judge_loss_level=False)) == ()


def test_a_loss_that_crosses_zero_may_go_as_far_up_as_it_has_been_down() -> None:
    history = History()
    for step in range(64):
        history.admit(Reading(step=step, loss=-5.0 if step % 8 == 0 else 0.01, grad_norm=1.0), applied=True)
    assert history.limits(BALANCED).loss > 5.0
