"""A healthy step is judged by a few comparisons; whatever they pass over, the detectors had nothing to say about."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from steadygrad.detect.detectors import OF_THE_RUN
from steadygrad.detect.history import History
from steadygrad.policy import PRESETS, Policy
from steadygrad.records import Reading

SIZES = st.floats(min_value=-6, max_value=6).map(lambda power: 10.0**power)
STEPS = st.tuples(
    st.one_of(SIZES, SIZES.map(lambda size: -size), st.just(0.0)),  # loss
    st.one_of(SIZES, st.just(0.0), st.just(math.inf)),  # norm
    st.booleans(),  # applied
    st.sampled_from([None, None, None, 65536.0]),  # loss scale
)
RUNS = st.one_of(
    st.lists(STEPS, max_size=60),
    st.tuples(st.lists(STEPS, min_size=1, max_size=12), st.integers(1, 12)).map(lambda run: run[0] * run[1]),
)


def history_of(run: list[tuple[float, float, bool, float | None]]) -> tuple[History, Reading]:
    history = History()
    reading = Reading(step=0, loss=0.0)
    for step, (loss, norm, applied, scale) in enumerate(run):
        reading = Reading(step=step, loss=loss, grad_norm=norm, loss_scale=scale)
        if step < len(run) - 1:
            history.admit(reading, applied and math.isfinite(norm))
    return history, reading


@settings(max_examples=400, deadline=None)
@given(run=RUNS, policy=st.sampled_from(sorted(PRESETS)))
def test_no_detector_of_the_run_reports_anything_after_an_uneventful_stretch(
    run: list[tuple[float, float, bool, float | None]], policy: str
) -> None:
    history, reading = history_of(run)
    if history.uneventful(reading, PRESETS[policy]):
        assert [module.detect(reading, history, PRESETS[policy]) for module in OF_THE_RUN] == [None] * len(OF_THE_RUN)


@settings(max_examples=400, deadline=None)
@given(run=RUNS, policy=st.sampled_from(sorted(PRESETS)))
def test_what_is_no_higher_than_a_recent_step_is_below_the_limits_of_a_spike(
    run: list[tuple[float, float, bool, float | None]], policy: str
) -> None:
    history, reading = history_of(run)
    if history.seen_as_high(reading, PRESETS[policy]):
        limits = history.limits_of(reading, PRESETS[policy])
        assert reading.grad_norm <= limits.grad_norm
        assert reading.loss <= limits.loss


def test_a_steady_run_is_uneventful_and_a_refused_step_is_an_event() -> None:
    history = History()
    for step in range(40):
        history.admit(Reading(step=step, loss=1.0 + 0.01 * (step % 3), grad_norm=1.0), applied=True)
    reading = Reading(step=40, loss=1.0, grad_norm=0.9)
    assert history.uneventful(reading, Policy())
    assert history.seen_as_high(reading, Policy())
    history.admit(Reading(step=40, loss=math.nan, grad_norm=1.0), applied=False)
    assert not history.uneventful(reading, Policy())
