"""One NaN loss costs one step. A rule that keeps a plain rolling mean and deviation loses a whole window to it."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable

import pytest

from steadygrad.detect.history import History
from steadygrad.detect.judge_step import judge
from steadygrad.policy import Capabilities, Ledger, Policy, decide
from steadygrad.records import Reading

WINDOW, SIGMAS = 128, 6.0
BAD_STEP, NUM_STEPS = 200, 500


def rolling_mean_rule(losses: list[float]) -> list[int]:
    """Apply a step only if its loss lies within six standard deviations of the mean of the last 128 losses. Every loss
    goes into the window, and a comparison with NaN is false."""
    window: deque[float] = deque(maxlen=WINDOW)
    skipped = []
    for step, loss in enumerate(losses):
        window.append(loss)
        if len(window) < WINDOW // 2:
            continue
        mean = sum(window) / len(window)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in window) / len(window))
        if not abs(loss - mean) <= SIGMAS * deviation:
            skipped.append(step)
    return skipped


def our_rule(losses: list[float]) -> list[int]:
    history, ledger, policy, skipped = History(), Ledger(), Policy.named("balanced"), []
    for step, loss in enumerate(losses):
        reading = Reading(step=step, loss=loss, grad_norm=loss)
        decision, ledger = decide(policy, ledger, reading, judge(reading, history, policy), can=Capabilities())
        history.admit(reading, decision.applies)
        skipped += [] if decision.applies else [step]
    return skipped


def losses_with(bad: float) -> list[float]:
    rng = random.Random(0)
    losses = [3.0 + 0.1 * rng.gauss(0, 1) for _ in range(NUM_STEPS)]
    losses[BAD_STEP] = bad
    return losses


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["nan", "inf"])
def test_one_bad_loss_costs_exactly_one_step(bad: float) -> None:
    assert our_rule(losses_with(bad)) == [BAD_STEP]


def test_the_rolling_mean_loses_more_than_a_hundred_steps_to_the_same_nan() -> None:
    skipped = rolling_mean_rule(losses_with(math.nan))
    assert len(skipped) > 100
    assert skipped == list(range(BAD_STEP, BAD_STEP + WINDOW))


@pytest.mark.parametrize("rule", [our_rule, rolling_mean_rule])
def test_neither_rule_skips_anything_of_a_healthy_run(rule: Callable[[list[float]], list[int]]) -> None:
    assert rule(losses_with(3.0)) == []


def test_a_nan_every_fifty_steps_costs_those_steps_only() -> None:
    losses = losses_with(3.0)
    bad = list(range(25, NUM_STEPS, 50))
    for step in bad:
        losses[step] = math.nan
    assert our_rule(losses) == bad
