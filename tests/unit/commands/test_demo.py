"""`steady demo`: the plain loop dies of its data, the guarded one learns on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from steadygrad.commands.demo_parts.demo_view import sparkline
from steadygrad.commands.demo_parts.dialogue import CONTEXT, MAX_CUE_WORDS, Pair, load
from steadygrad.commands.demo_parts.two_loops import BATCH_SIZE, TwoLoops, reply_loss
from steadygrad.journal import read_incidents, read_steps
from steadygrad.records import Action

STEPS = 80


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoLoops, Path]:
    torch.set_num_threads(1)
    run_dir = tmp_path_factory.mktemp("demo") / "run"
    race = TwoLoops(steps=STEPS, seed=0, run_dir=run_dir)
    assert len(list(race.run())) == STEPS
    return race, run_dir


def test_the_plain_loop_ends_with_every_weight_nan(raced: tuple[TwoLoops, Path]) -> None:
    race, _ = raced
    assert all(bool(torch.isnan(parameter).any()) for parameter in race.plain_model.parameters())
    losses = race.result().plain_losses
    dead_from = race.result().plain_first_bad_step
    assert dead_from is not None
    assert all(math.isfinite(loss) for loss in losses[:dead_from])
    assert all(math.isnan(loss) for loss in losses[dead_from:])


def test_the_guarded_loop_stays_finite_and_learns(raced: tuple[TwoLoops, Path]) -> None:
    race, _ = raced
    result = race.result()
    assert all(bool(torch.isfinite(parameter).all()) for parameter in race.guarded_model.parameters())
    assert result.guarded_bad_weights == 0
    assert result.guarded_loss < 0.7 * result.guarded_losses[0]
    assert result.summary["skipped"] >= 1
    assert result.summary["guard_faults"] == {}


def test_both_loops_agree_to_the_bit_until_the_first_bad_batch(raced: tuple[TwoLoops, Path]) -> None:
    result = raced[0].result()
    first = result.plain_first_bad_step
    assert first is not None
    assert first > 10
    assert result.plain_losses[:first] == result.guarded_losses[:first]


def test_the_journal_tells_of_the_refused_steps(raced: tuple[TwoLoops, Path]) -> None:
    race, run_dir = raced
    refused = {record.step for record in read_steps(run_dir) if not record.applied}
    bad_batches = [
        step
        for step, batch in enumerate(race.dialogue.batches(count=STEPS, size=BATCH_SIZE, seed=0))
        if not batch["scored"].any(dim=1).all()
    ]
    assert refused == set(bad_batches)
    incidents = read_incidents(run_dir)
    assert [incident.symptom for incident in incidents] == ["nan_loss"] * len(bad_batches)
    assert all(incident.decision is not None and Action.SKIP in incident.decision.actions for incident in incidents)


def test_the_mistake_is_in_the_data_loader_and_nowhere_else() -> None:
    """A cue of twenty words that is longer than the context leaves nothing to score; all others leave something."""
    dialogue = load()
    empty = [pair for pair in dialogue.pairs if not dialogue.sample(pair)[1].any()]
    assert empty
    assert len(empty) < 0.01 * len(dialogue.pairs)
    for pair in dialogue.pairs:
        too_long = len(pair.cue) + 2 > CONTEXT
        assert (pair in empty) == too_long
        assert len(pair.cue.split("\n", 1)[1].split()) <= MAX_CUE_WORDS


def test_a_batch_of_good_samples_has_a_finite_loss_and_one_bad_sample_makes_it_nan() -> None:
    race = TwoLoops(steps=1, seed=3, run_dir=None)
    race.guard.close()
    dialogue = race.dialogue
    bad = next(pair for pair in dialogue.pairs if not dialogue.sample(pair)[1].any())
    good = [pair for pair in dialogue.pairs if dialogue.sample(pair)[1].any()][:3]

    def loss_of(pairs: list[Pair]) -> float:
        tokens, scored = zip(*(dialogue.sample(pair) for pair in pairs), strict=True)
        return reply_loss(race.plain_model, {"tokens": torch.stack(tokens), "scored": torch.stack(scored)}).item()

    assert math.isfinite(loss_of(good))
    assert math.isnan(loss_of([*good, bad]))


def test_a_sparkline_rises_with_the_loss_and_marks_where_there_is_none() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0], width=4, of=4, bars="abcd") == "abcd"
    assert sparkline([0.0, 3.0, math.nan, math.nan], width=4, of=4, bars="abcd") == "adxx"
    assert sparkline([0.0, 3.0], width=4, of=4, bars="abcd") == "ad"
    assert sparkline([0.0, 1.0], width=4, of=4, bars="abcd", scale=[0.0, 3.0, math.nan]) == "ab"
    assert sparkline([], width=4, of=4) == ""


def run_demo(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "steadygrad.commands", "demo", *options]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_the_demo_without_a_terminal_tells_what_happened_and_what_to_do_next(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--steps", "72", "--run-dir", "runs/here")
    assert done.returncode == 0, done.stderr
    assert "its loss became nan at step 69 and stayed nan" in done.stdout
    assert "72 steps, 1 refused" in done.stdout
    assert "steady incidents runs/here" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / "runs/here/run.json").is_file()
    assert "runs/here/report.html" in done.stdout
    assert "1 of 72 updates refused" in (tmp_path / "runs/here/report.html").read_text(encoding="utf-8")


def test_the_demo_as_json_is_json_and_nothing_else(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 2
    assert told["plain"]["first_bad_step"] is None
    assert told["guarded"]["bad_weight_tensors"] == 0
    assert told["run_dir"] == "runs/demo"
    assert (tmp_path / told["report"]).is_file()


def test_the_demo_never_writes_into_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    refused = run_demo(tmp_path, "--steps", "1", "--run-dir", "mine")
    assert refused.returncode == 2
    assert "mine is not empty" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
