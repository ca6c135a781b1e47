"""Following a run from its files: only what is new, every rank, and whether somebody still writes it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from made_runs import an_overflow, write_long_run

from steadygrad.journal import Journal, read_steps
from steadygrad.records import Action, Decision, Incident, StepRecord
from steadygrad.records.errors import JournalError
from steadygrad.reporters.run_data.follow_run import RunFollower
from steadygrad.reporters.run_data.run_summary import RunSummary, cause_in_words, summarise

WRITER = """
import sys, time
from steadygrad.journal import Journal
from steadygrad.records import StepRecord
journal = Journal(sys.argv[1], names=["w"])
for step in range(50):
    journal.step(StepRecord(run="r", step=step, loss=1.0, grad_norm=1.0, norms=[1.0], time=time.time()))
assert journal.flush(60.0)
print("written", flush=True)
sys.stdin.readline()
journal.close()
print("closed", flush=True)
"""


def story_of(run: Path) -> RunSummary:
    follower = RunFollower(run)
    follower.poll()
    return summarise(run, follower)


def a_step(step: int, **changes: object) -> StepRecord:
    fields: dict[str, object] = {"run": "r", "step": step, "loss": 1.0 + step, "grad_norm": 2.0, "norms": [0.5, 0.25],
                                 "time": 1000.0 + step}  # fmt: skip
    return StepRecord(**(fields | changes))  # type: ignore[arg-type]


def test_looking_again_and_again_finds_every_row_once(tmp_path: Path) -> None:
    follower = RunFollower(tmp_path / "run")
    with Journal(tmp_path / "run", names=["a", "b"], merge_after=3, segment_bytes=6000) as journal:
        seen = []
        for step in range(400):
            journal.step(a_step(step, terms={"ce": float(step)}))
            if step % 23 == 0:
                assert journal.flush(60.0)
                follower.poll()
                seen.append(follower.ranks[0].num_rows)
    follower.poll()
    assert follower.poll() == 0
    assert len(set(seen)) > 10
    rows = follower.ranks[0]
    expected = list(read_steps(tmp_path / "run"))
    assert rows.column("step").tolist() == [record.step for record in expected] == list(range(400))
    assert rows.column("loss").tolist() == [record.loss for record in expected]
    assert rows.term("ce").tolist() == [float(step) for step in range(400)]


def test_every_rank_is_followed_and_the_lowest_stands_for_the_run(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        write_long_run(tmp_path / "run", steps=60 + rank, tensors=4, rank=rank, seed=rank)
    story = story_of(tmp_path / "run")
    assert [(rows.rank, rows.num_rows) for rows in story.ranks] == [(0, 60), (1, 61), (3, 63)]
    assert story.counts.steps == 60


def test_refused_steps_and_scale_overflows_are_counted_apart(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.step(a_step(0))
        journal.step(a_step(1, applied=False, flags=("SY304",)))
        journal.step(a_step(2, applied=False, flags=("SY101",), loss=math.nan))
        journal.step(a_step(3, flags=("SY304",)))
    counts = story_of(tmp_path / "run").counts
    assert (counts.steps, counts.applied, counts.refused, counts.overflows) == (4, 2, 1, 1)
    assert counts.success_rate == pytest.approx(2 / 3)


def test_a_run_is_running_then_crashed_when_its_writer_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        assert story_of(run).state.word == "running"
        os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.communicate()
    state = story_of(run).state
    assert state.word == "crashed"
    assert state.sentence.startswith("killed or crashed at step 49")


def test_a_run_that_closed_its_journal_has_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        out, _ = writer.communicate(b"\n", timeout=120)
    finally:
        writer.kill()
        writer.communicate()
    assert out.endswith(b"closed\n")
    assert story_of(run).state.sentence == "ended at step 49"


def test_looking_does_not_let_go_of_the_lock_that_this_process_holds(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops a POSIX lock of the whole process, so the lock file must not be opened."""
    with Journal(tmp_path / "run") as journal:
        journal.step(a_step(0, time=time.time()))
        assert journal.flush(60.0)
        assert story_of(tmp_path / "run").state.word == "running"
        script = f"from steadygrad.journal import Journal; Journal({str(tmp_path / 'run')!r})"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert other.returncode != 0
        assert "is already being written" in other.stderr
    assert story_of(tmp_path / "run").state.word == "ended"


def test_a_run_that_is_quiet_for_long_says_so(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        assert story_of(tmp_path / "run").state.sentence == "running, waiting for its first step"
        journal.step(a_step(0, time=time.time() - 7200))
        assert journal.flush(60.0)
        assert story_of(tmp_path / "run").state.sentence == "running, but no step for 2 h"


def test_a_halted_run_says_so(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.step(a_step(7, applied=False, flags=("SY101",)))
        decision = Decision(step=7, actions=(Action.SKIP, Action.HALT))
        journal.incident(Incident(number=1, first_step=7, last_step=7, symptom="nan_loss", decision=decision))
    assert story_of(tmp_path / "run").state.sentence == "halted by its policy at step 7"


def test_a_torn_tail_is_left_out_and_told(tmp_path: Path) -> None:
    write_long_run(tmp_path / "run", steps=100, tensors=3)
    (segment,) = (tmp_path / "run" / "steps").glob("*.arrow")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-8] + whole[-200:-30])
    story = story_of(tmp_path / "run")
    assert story.counts.steps == 100
    assert story.state.word == "crashed"
    assert "ends in a torn record of 170 bytes" in story.notes[0]


def test_a_segment_that_cannot_be_read_costs_only_itself_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_long_run(tmp_path / "run", steps=50, tensors=3)
    with monkeypatch.context() as patch:
        patch.setattr("steadygrad.journal.steps.columns.STEPS_VERSION", 9)
        write_long_run(tmp_path / "run", steps=20, tensors=3)
    story = story_of(tmp_path / "run")
    assert story.counts.steps == 50
    assert len(story.notes) == 1
    assert "has format version 9" in story.notes[0]
    assert "upgrade steadygrad" in story.notes[0]


def test_nothing_readable_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("steadygrad.journal.steps.columns.STEPS_VERSION", 9)
        write_long_run(tmp_path / "run", steps=20, tensors=3)
    with pytest.raises(JournalError, match=r"has format version 9 and this steadygrad reads up to 1: upgrade"):
        RunFollower(tmp_path / "run").poll()


def test_of_far_too_many_segments_the_newest_are_read_and_the_rest_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):  # each begins a segment, as a resumed run does
        with Journal(tmp_path / "run") as journal:
            journal.step(StepRecord(run="r", step=number, loss=1.0, grad_norm=1.0, time=time.time()))
    assert story_of(tmp_path / "run").counts.steps == 5
    assert story_of(tmp_path / "run").notes == []
    monkeypatch.setattr("steadygrad.reporters.run_data.follow_run.MAX_SEGMENTS", 2)
    story = story_of(tmp_path / "run")
    assert story.rows is not None
    assert story.rows.column("step").tolist() == [3, 4]
    assert story.notes == ["3 of 5 step segments were not read, the oldest ones."]
    assert story.headline == "All 2 updates applied. The record of this run is not complete."


def test_the_headline_of_a_real_run_names_cause_and_remedy(guarded_run: Path) -> None:
    story = story_of(guarded_run)
    assert (story.counts.steps, story.counts.refused, len(story.incidents)) == (60, 3, 3)
    assert [incident.first_step for incident in story.incidents] == [20, 30, 40]
    causes = [cause_in_words(incident) or "" for incident in story.incidents]
    assert "zero" in causes[0]
    assert "is not finite" in causes[1]
    assert story.headline.startswith("3 of 60 updates refused (loss NaN). The weights are clean. Cause: ")
    assert "Verified remedy: " in story.headline
    assert np.isfinite(story.ranks[0].column("loss")).sum() == 57


def test_an_incident_is_read_again_only_when_its_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steadygrad.reporters.run_data import changed_files

    read = []
    real = changed_files.read_incident
    monkeypatch.setattr(changed_files, "read_incident", lambda path: read.append(path.parent.name) or real(path))
    with Journal(tmp_path / "run") as journal:
        for number in (1, 2):
            journal.incident(an_overflow(number, number * 10, diagnosed=False))
        assert journal.flush(60.0)
        beside = changed_files.ChangedFiles(tmp_path / "run")
        for _ in range(3):
            assert [incident.number for incident in beside.look()[0]] == [1, 2]
        assert sorted(read) == ["0001", "0002"]
        journal.incident(an_overflow(2, 20))
        assert journal.flush(60.0)
        incidents, _ = beside.look()
        assert incidents[1].diagnosis is not None
        assert sorted(read) == ["0001", "0002", "0002"]


def test_a_damaged_incident_costs_only_itself(tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "run", steps=60, tensors=2, bad=(20, 40))
    (run / "incidents" / "0001" / "incident.json").write_text("{torn")
    story = story_of(run)
    assert [incident.number for incident in story.incidents] == [2]
    assert len(story.notes) == 1
    assert "is not JSON that steadygrad wrote" in story.notes[0]
