"""Journal, the one door: what goes in comes out, and nothing it meets reaches training."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import threading
import time
from pathlib import Path

import pytest

from steadygrad.journal import Journal, read_events, read_incidents, read_quarantine, read_steps
from steadygrad.journal import journal_health as journal_health
from steadygrad.journal import safe_files as journal_files
from steadygrad.records import Cause, Diagnosis, Finding, Incident, Severity, StepRecord
from steadygrad.records.errors import JournalError


def incident(number: int) -> Incident:
    finding = Finding(code="SY101", slug="nonfinite_loss", severity=Severity.FATAL, step=7, subject="<b>ce</b>\n")
    return Incident(number=number, first_step=7, last_step=8, symptom="nan_loss", findings=(finding,), time=math.inf)


def test_everything_handed_over_is_read_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", names=["w"], run_config={"lr": 1e-3}) as journal:
        journal.step(StepRecord(run=journal.run_id, step=0, loss=math.nan, norms=(math.inf,), flags=("SY101",)))
        assert journal.event("ladder", rung=2, factor=math.nan)
        assert journal.quarantine("batch 7", step=7, cause="nan_loss", rows=[3, 5], sample_ids=[11, "x"])
        assert journal.quarantine("batch 8", step=8)
        assert journal.incident(incident(journal.next_incident()))
        assert journal.write_state({"skips": 3, "limit": math.inf})
        assert journal.read_state() == {"skips": 3, "limit": "inf"}
        assert journal.flush()
        (record,) = read_steps(tmp_path / "run")
        assert (math.isnan(record.loss), record.norms, record.run) == (True, (math.inf,), journal.run_id)
        assert (journal.num_steps, journal.num_events, journal.num_incidents, journal.num_quarantined) == (1, 1, 1, 2)
        assert (journal.degraded, journal.dropped) == (None, 0)
    event, _ = read_events(tmp_path / "run")  # and how the program ended
    assert (event.kind, event.data) == ("ladder", {"rung": 2, "factor": "nan"})
    first, second = read_quarantine(tmp_path / "run")
    assert (first.batch_key, first.rows, first.sample_ids, first.cause) == ("batch 7", (3, 5), ("11", "x"), "nan_loss")
    assert second.rows is None
    assert read_incidents(tmp_path / "run") == [incident(1)]


def test_a_diagnosis_added_later_takes_the_place_of_the_incident(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        plain = incident(journal.next_incident())
        assert journal.incident(plain)
        diagnosis = Diagnosis(
            symptom="nan_loss", phase="loss", cause=Cause(code="DX101", slug="log_of_zero"), rows=(2,)
        )
        assert journal.incident(dataclasses.replace(plain, diagnosis=diagnosis))
        assert journal.num_incidents == 1
    (back,) = read_incidents(tmp_path / "run")
    assert back.diagnosis == diagnosis
    assert [path.name for path in (tmp_path / "run" / "incidents" / "0001").iterdir()] == ["incident.json"]


def test_a_resumed_journal_goes_on_counting_and_finds_its_state(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        assert journal.read_state() is None
        journal.incident(incident(journal.next_incident()))
        journal.write_state({"step": 41})
        assert not journal.continued
    with Journal(tmp_path / "run") as journal:
        assert journal.continued
        assert journal.next_incident() == 2
        assert journal.read_state() == {"step": 41}


def test_without_a_directory_nothing_is_kept_and_everything_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(None) as journal:
        journal.step(StepRecord(run="r", step=0))
        assert not journal.event("x")
        assert not journal.quarantine("k", step=0)
        assert not journal.incident(incident(journal.next_incident()))
        assert not journal.write_state({})
        assert journal.read_state() is None
        assert journal.incident_directory(1) is None
        assert journal.flush()
        assert (journal.num_steps, journal.num_events, journal.num_incidents, journal.num_quarantined) == (1, 1, 1, 1)
        assert journal.next_incident() == 2
        assert (journal.path, journal.directory, journal.degraded) == (None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_steps_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", flush_every=0.05) as journal:
        journal.step(StepRecord(run="r", step=5))
        deadline = time.monotonic() + 60
        while not list(read_steps(tmp_path / "run")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [record.step for record in read_steps(tmp_path / "run")] == [5]


def test_a_journal_that_is_forgotten_writes_what_it_has_and_ends_its_thread(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", flush_every=60)
    journal.step(StepRecord(run="r", step=5))
    del journal
    gc.collect()
    assert [record.step for record in read_steps(tmp_path / "run")] == [5]
    Journal(tmp_path / "run").close()  # the directory was let go of


def test_closing_ends_the_thread_and_a_closed_journal_is_quiet(tmp_path: Path) -> None:
    before = threading.active_count()
    journal = Journal(tmp_path / "run")
    assert threading.active_count() == before + 1
    journal.close()
    journal.close()
    assert threading.active_count() == before
    journal.step(StepRecord(run="r", step=5))
    assert not journal.event("late")
    assert not journal.flush()
    assert list(read_steps(tmp_path / "run")) == []


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words for this")


def test_what_cannot_be_written_down_is_counted_and_raises_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", flush_every=0.02) as journal:
        assert not journal.event("x", what=Unspeakable())
        assert not journal.write_state({"what": Unspeakable()})
        journal.step(StepRecord(run="r", step=0, batch_key=Unspeakable()))  # type: ignore[arg-type]
        journal.step(StepRecord(run="r", step=1))
        assert journal.flush()
        assert journal.dropped == 3
        journal.step(StepRecord(run="r", step=2))
        assert journal.flush()
        assert journal.degraded is None  # and it goes on
        assert journal.event("x", what="words")
    assert [record.step for record in read_steps(tmp_path / "run")] == [1, 2]


def test_an_event_too_large_for_a_line_is_kept_without_its_data(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        assert journal.event("big", text="x" * (2 << 20))
    event, _ = read_events(tmp_path / "run")  # and how the program ended
    assert event.kind == "big"
    assert event.data["too_large"] > 2 << 20


def test_a_hung_disk_costs_training_one_short_wait_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    real = journal_files.write_all

    def hung(descriptor: int, data: bytes) -> None:
        answer.wait()
        real(descriptor, data)

    said: list[str] = []
    journal = Journal(tmp_path / "run", flush_every=0.02, max_queue=64, on_degraded=said.append)
    monkeypatch.setattr(journal_files, "write_all", hung)
    monkeypatch.setattr("steadygrad.journal.journal._WAIT_S", 0.5)
    start = time.monotonic()
    for step in range(1000):
        journal.step(StepRecord(run="r", step=step))
    for number in range(200):
        assert not journal.event("x", number=number)
    assert not journal.write_state({"step": 1000})
    assert time.monotonic() - start < 30.0
    assert journal.degraded is not None
    assert len(said) == 1
    assert journal.dropped >= 1000 - 2 * 64
    answer.set()
    assert journal.flush(timeout=20)
    assert journal.degraded is None
    journal.step(StepRecord(run="r", step=1000))
    journal.close()
    steps = [record.step for record in read_steps(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert steps[-64:] == list(range(937, 1001))
    events = read_events(tmp_path / "run")
    assert [event.data["number"] for event in events if event.kind == "x"] == list(range(200))
    (period,) = (event for event in events if event.kind == "journal_degraded")
    assert period.data["dropped"] == 1001 - len(steps)
    assert period.data["reason"] == said[0]


def test_a_callback_that_raises_does_not_reach_training(tmp_path: Path) -> None:
    def shout(reason: str) -> None:
        raise RuntimeError(reason)

    with Journal(tmp_path / "run", max_queue=4, flush_every=60, on_degraded=shout) as journal:
        for step in range(9):
            journal.step(StepRecord(run="r", step=step))
        assert journal.dropped > 0


def test_a_state_from_a_newer_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        (tmp_path / "run" / "state.json").write_text('{"version": 2, "state": {}}')
        with pytest.raises(JournalError, match=r"state\.json is not a state this steadygrad can resume from"):
            journal.read_state()


def test_a_disk_that_takes_its_time_once_is_no_news_and_one_that_hangs_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr(journal_health.time, "monotonic", lambda: now[0])
    health = journal_health.JournalHealth(told.append)
    health.fail("events", "slow", patience=5.0)
    assert health.degraded == "slow"  # nobody waits for it again meanwhile
    health.recover("events")
    assert (told, caplog.records) == ([], [])
    health.fail("events", "slow", patience=5.0)
    now[0] += 6
    health.tell_if_overdue()
    health.tell_if_overdue()
    assert told == ["slow"]
    health.recover("events")
    assert [record.getMessage()[:28] for record in caplog.records] == [
        "The journal is degraded: slo",
        "The journal writes again aft",
    ]
    health.fail("events", "slow again", patience=5.0)
    health.drop()
    health.tell_if_overdue()
    assert told == ["slow", "slow again"]


def test_a_directory_that_another_program_wrote_to_is_said_unless_the_run_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path / "run"):
        pass
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    for resumes, process, lines in ((False, os.getpid(), 0), (True, 1, 0), (False, 1, 1)):
        told["sessions"][-1]["process"] = process
        (tmp_path / "run" / "run.json").write_text(json.dumps(told))
        caplog.clear()
        with Journal(tmp_path / "run", resumes=resumes):
            assert caplog.text.count("already holds the run of another program") == lines
