"""What the regimes promise: many kinds, the same bits each time, finite values, and programs that are the same loop."""

from __future__ import annotations

import atexit
import functools
import json
import sys
from pathlib import Path

import pytest
import torch
from soak.entry_points import NAMES, entry_point
from soak.entry_points.run_entry import program
from soak.plain_loop import run_loop
from soak.programs import Builder
from soak.regimes import REGIMES
from soak.regimes.optimizers import OPTIMIZERS
from soak.sick import DIVERGING, DIVERGING_STEP, POISONED, SICK, SICK_STEPS
from soak.state import bad_values, differences, state_of
from soak.training import Training


def trained(name: str, steps: int, seed: int = 0) -> Training:
    training = Builder(name, seed)()
    losses = list(run_loop(training, steps))
    assert len(losses) == steps
    return training


def test_there_are_more_than_thirty_kinds_and_each_says_what_it_is() -> None:
    assert len(REGIMES) - len(OPTIMIZERS) + 1 >= 30
    assert [name for name, build in (REGIMES | SICK).items() if not build.__doc__] == []
    assert not REGIMES.keys() & SICK.keys()


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_starts_finite_and_gives_the_same_bits_again(name: str) -> None:
    first, again = trained(name, 6), trained(name, 6)
    assert bad_values(first) == []
    assert differences(state_of(first), state_of(again)) == []
    assert differences(state_of(first), state_of(trained(name, 6, seed=1))) != []


@pytest.mark.parametrize("name", REGIMES)
def test_the_program_for_steady_run_is_the_plain_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = tmp_path / "ends.json"
    monkeypatch.setattr(sys, "argv", ["train.py", str(ends)])
    source = program(Builder(name, 0)(), name, 0, 7)
    assert "steadygrad" not in source
    at_exit: list[functools.partial[None]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(functools.partial(*call)))
    exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})
    at_exit[0]()
    assert differences(json.loads(ends.read_text())["state"], state_of(trained(name, 7))) == []


def test_every_regime_is_expressed_by_guard_or_attach_and_by_steady_run() -> None:
    for name in REGIMES:
        reasons = {each: entry_point(each).why_not(Builder(name, 0)()) for each in ("guard", "attach", "run")}
        assert reasons["run"] is None
        assert None in (reasons["guard"], reasons["attach"])


def test_an_entry_point_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="no entry point 'gard'"):
        entry_point("gard")
    assert len(NAMES) == 6


def test_one_bit_of_a_moment_or_a_buffer_is_a_difference() -> None:
    training = trained("averaged_weights", 5)
    before = state_of(training)
    with torch.no_grad():
        momentum = next(iter(training.optimizers[0].state.values()))["momentum_buffer"]
        momentum.view(-1)[0] = torch.nextafter(momentum.view(-1)[0], torch.tensor(9.0))
        training.models[0].get_buffer("1.running_mean")[3] += 1.0
    assert differences(before, state_of(training)) == [
        "model0.buffer.1.running_mean", "optimizer0.state.0.momentum_buffer",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["nan_in_cosine_restarts", "update_divides_by_zero", "weights_overflow"])
def test_a_poisoned_twin_ends_non_finite_when_left_alone(name: str) -> None:
    assert name in POISONED
    assert bad_values(trained(name, 160)) != []


@pytest.mark.parametrize("name", DIVERGING)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_diverging_twin_forgets_its_earlier_batches_and_stays_finite(name: str, seed: int) -> None:
    training = Builder(name, seed)()
    player = training.players[0]
    losses = run_loop(training, SICK_STEPS)
    for _ in range(DIVERGING_STEP):
        next(losses)
    copy = Builder(name, seed)()
    earlier = [next(copy.batches) for _ in range(DIVERGING_STEP)][-20:]

    def on_earlier_batches() -> float:
        with torch.no_grad():
            return sum(float(player.loss(player.model, batch)) for batch in earlier) / len(earlier)

    good = on_earlier_batches()
    for _ in losses:
        pass
    assert bad_values(training) == []
    assert on_earlier_batches() > 10 * good
