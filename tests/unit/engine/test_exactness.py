"""Laws 1 and 3: healthy means untouched, and a skipped batch leaves no trace."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specimens import batches, differing, run_guarded, run_plain, state_of
from torch import Tensor

MODES = ("now", "late")


def poison(batch: Tensor, kind: str) -> Tensor:
    bad = batch.clone()
    if kind == "nan":
        bad[2, 3] = math.nan
    elif kind == "inf":
        bad[1, 0] = math.inf
    elif kind == "spike":
        bad[:, 8] = 3e6  # the target: a finite loss and a finite, enormous gradient
    elif kind == "overflow":
        bad[:, 8] = 1e19  # squares to inf in float32
    return bad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_healthy_guarded_run_is_bit_identical_to_the_plain_loop(
    mode: str, clip: float | None, accumulate: int
) -> None:
    data = batches(24)
    plain = state_of(run_plain(data, clip=clip, accumulate=accumulate))
    guarded = state_of(run_guarded(data, clip_norm=clip, accumulate=accumulate, settle=mode))
    assert differing(plain, guarded) == []


def test_the_comparison_can_fail() -> None:
    data = batches(12)
    assert differing(state_of(run_plain(data)), state_of(run_plain(data[:-1]))) != []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "where"),
    # A spike is told from the steps before it, so there must be some.
    [
        (kind, where)
        for kind in ("nan", "inf", "spike", "overflow")
        for where in (0, 1, 13, 24)
        if kind != "spike" or where > 8
    ],
)
def test_one_bad_batch_leaves_no_trace(mode: str, kind: str, where: int) -> None:
    data = batches(24)
    bad = [*data[:where], poison(data[5], kind), *data[where:]]
    assert differing(state_of(run_plain(data)), state_of(run_guarded(bad, settle=mode))) == []


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    accumulate=st.integers(1, 4),
    plan=st.lists(st.sampled_from(["good", "good", "good", "nan", "inf", "overflow"]), min_size=4, max_size=22),
)
def test_any_mix_of_good_and_bad_batches_ends_as_the_good_ones_alone(
    mode: str, accumulate: int, plan: list[str]
) -> None:
    data = batches(len(plan))
    mixed = [b if kind == "good" else poison(b, kind) for b, kind in zip(data, plan, strict=True)]
    good = [b for b, kind in zip(data, plan, strict=True) if kind == "good"]
    good = good[: len(good) - len(good) % accumulate]
    keep = len(good)  # the unfinished window at the end is compared by its absence: drop its micro-batches from both
    taken, mixed_cut = 0, []
    for batch, kind in zip(mixed, plan, strict=True):
        if kind == "good":
            if taken == keep:
                continue
            taken += 1
        mixed_cut.append(batch)
    guarded = run_guarded(mixed_cut, accumulate=accumulate, settle=mode)
    assert differing(state_of(run_plain(good, accumulate=accumulate)), state_of(guarded)) == []


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(accumulate=st.integers(1, 3), places=st.sets(st.integers(24, 44), min_size=1, max_size=3))
def test_spikes_after_a_calm_start_leave_no_trace(mode: str, accumulate: int, places: set[int]) -> None:
    data = batches(48)
    mixed: list[Tensor] = []
    for index, batch in enumerate(data):
        if index in places:
            mixed.append(poison(batch, "spike"))
        mixed.append(batch)
    plain = run_plain(data, accumulate=accumulate)
    guarded = run_guarded(mixed, accumulate=accumulate, settle=mode)
    assert differing(state_of(plain), state_of(guarded)) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_micro_batch_at_any_place_of_the_window_is_dropped_alone(mode: str) -> None:
    data = batches(12)
    for place in range(4):
        bad = [*data[: 4 + place], poison(data[0], "nan"), *data[4 + place :]]
        guarded = run_guarded(bad, accumulate=4, settle=mode)
        assert differing(state_of(run_plain(data, accumulate=4)), state_of(guarded)) == []


def test_a_loss_fn_that_returns_none_skips_the_batch_without_a_trace() -> None:
    data = batches(12)
    plain = state_of(run_plain(data))
    mixed = [*data[:5], torch.full((6, 9), -77.0), *data[5:]]

    import specimens

    def choosy(model: torch.nn.Module, batch: Tensor) -> Tensor | None:
        loss = specimens.loss_fn(model, batch)
        return None if float(batch[0, 0]) == -77.0 else loss

    it = specimens.setup()
    import steadygrad as sg

    with sg.Guard(it.model, it.optimizer, choosy, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema) as guard:
        outcomes = [guard.step(batch) for batch in mixed]
        assert outcomes[5].skipped
        assert not outcomes[5].applied
        assert guard.summary()["applied"] == 12
    assert differing(plain, state_of(it)) == []
