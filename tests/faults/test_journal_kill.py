"""Writers killed with SIGKILL at random moments: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from steadygrad.journal import Journal, read_events, read_incidents, read_quarantine, read_steps
from steadygrad.journal.steps.step_reader import segment_paths

sys.path.insert(0, str(Path(__file__).parent))
import journal_nursery

KINDS = ("put", "flushed", "event", "incident", "state", "quarantined")


class Nursery:
    """Talks to journal_nursery.py."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("journal_nursery.py"))
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill_one(
        self, mode: str, run_dir: Path, notes: Path, *, seed: int, after: float, kinds: tuple[str, ...] = ()
    ) -> None:
        """Lets a writer work for `after` seconds beyond its first acknowledgement, and until it has acknowledged
        something of each of `kinds`, then kills it."""
        size = notes.stat().st_size if notes.exists() else 0
        self._stdin.write(f"{mode} {run_dir} {notes} {seed}\n")
        self._stdin.flush()
        writer = int(self._stdout.readline())
        deadline = time.monotonic() + 60
        while (not notes.exists() or notes.stat().st_size == size) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(after)
        deadline = time.monotonic() + 60
        while not set(kinds) <= set(acknowledged(notes)) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(writer, signal.SIGKILL)
        assert int(self._stdout.readline()) == -signal.SIGKILL, "the writer ended before it was killed"

    @property
    def _stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    with nursery.process:
        yield nursery
        nursery._stdin.close()


def acknowledged(notes: Path) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for line in notes.read_text().splitlines():
        kind, *numbers = line.split()
        found.setdefault(kind, []).append(tuple(int(number) for number in numbers))
    return found


def check_run(run_dir: Path, notes: Path) -> dict[str, int]:
    """Everything acknowledged is there; everything there is whole and was really put. Counts what was met."""
    acks = acknowledged(notes)
    put = {step for (step,) in acks.get("put", [])}

    seen = []
    for record in read_steps(run_dir):
        assert record.step in put
        wanted = journal_nursery.made(record.step)
        assert (record.batch_key, record.loss, record.terms) == (wanted.batch_key, wanted.loss, wanted.terms)
        assert (record.norms, record.flags, record.applied) == (wanted.norms, wanted.flags, wanted.applied)
        seen.append(record.step)
    assert seen == sorted(set(seen)), "a step twice or out of order"
    starts = [step for (step,) in acks.get("start", [])]
    for (last,) in acks.get("flushed", []):  # a flush speaks for all that its process had put before
        first = max(start for start in starts if start <= last)
        assert set(range(first, last + 1)) <= set(seen)

    events = [event.data["step"] for event in read_events(run_dir) if event.kind == "tick"]
    assert {step for (step,) in acks.get("event", [])} <= set(events)
    refused = [entry.step for entry in read_quarantine(run_dir)]
    assert {step for (step,) in acks.get("quarantined", [])} <= set(refused)
    incidents = {incident.number: incident.last_step for incident in read_incidents(run_dir)}
    for number, step in acks.get("incident", []):
        assert incidents[number] >= step
    if "state" in acks:
        state = json.loads((run_dir / "state.json").read_text())["state"]
        assert state["number"] >= max(number for (number,) in acks["state"])
        assert set(state["body"]) == {state["number"]} == {state["again"]}
    return {kind: len(entries) for kind, entries in acks.items()}


def kill_journals(nursery: Nursery, folder: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    met: dict[str, int] = {}
    for number in range(kills):
        run_dir, notes = folder / f"run{number // 5}", folder / f"notes{number // 5}"
        kinds = KINDS if number == kills - 1 else ()  # a machine too slow for luck still meets every kind once
        nursery.kill_one("journal", run_dir, notes, seed=seed + number, after=chance.uniform(0, 0.15), kinds=kinds)
        counts = check_run(run_dir, notes)
        if number % 5 == 4:  # the fifth kill of this run: now resume it, and other tools can read every segment
            for kind, count in counts.items():
                met[kind] = met.get(kind, 0) + count
            with Journal(run_dir) as journal:
                journal.step(journal_nursery.made(10**9))
            rows = sum(pa.ipc.open_stream(path.read_bytes()).read_all().num_rows for path in segment_paths(run_dir))
            assert rows == len(list(read_steps(run_dir)))
    assert min(met.get(kind, 0) for kind in KINDS) > 0, met


def test_fifty_kills_lose_nothing_acknowledged_and_tear_nothing(nursery: Nursery, tmp_path: Path) -> None:
    kill_journals(nursery, tmp_path, kills=50, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_kills_lose_nothing_acknowledged_and_tear_nothing(nursery: Nursery, tmp_path: Path) -> None:
    kill_journals(nursery, tmp_path, kills=1000, seed=1000)


def kill_replacements(nursery: Nursery, folder: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(kills):
        notes = folder / f"notes{number}"
        directory = folder / f"replaced{number}"
        directory.mkdir()
        nursery.kill_one("json", directory, notes, seed=number, after=chance.uniform(0, 0.05))
        whole = json.loads((directory / "whole.json").read_bytes())
        assert set(whole["body"]) == {whole["number"]} == {whole["again"]}
        assert len(whole["body"]) == 20_000
        assert whole["number"] >= max(step for (step,) in acknowledged(notes)["state"])


@pytest.mark.parametrize("place", range(len(journal_nursery.HELD_AT)), ids=journal_nursery.HELD_AT)
def test_a_kill_inside_a_replacement_leaves_the_old_file_whole(nursery: Nursery, tmp_path: Path, place: int) -> None:
    directory = tmp_path / "replaced"
    directory.mkdir()
    nursery.kill_one("held", directory, tmp_path / "notes", seed=place, after=0)
    assert len(list(directory.iterdir())) == 2, "no temporary file is left, so the kill fell outside the replacement"
    whole = json.loads((directory / "whole.json").read_bytes())
    assert (whole["number"], whole["again"], whole["body"]) == (1, 1, [1] * 20_000)


def test_kills_around_replacements_leave_the_old_or_the_new_whole(nursery: Nursery, tmp_path: Path) -> None:
    kill_replacements(nursery, tmp_path, kills=25, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_hundred_kills_inside_replacements_leave_no_half_file(nursery: Nursery, tmp_path: Path) -> None:
    kill_replacements(nursery, tmp_path, kills=500, seed=3)


def test_the_check_would_notice_a_lost_event_and_a_lost_step(nursery: Nursery, tmp_path: Path) -> None:
    run_dir, notes = tmp_path / "run", tmp_path / "notes"
    nursery.kill_one("journal", run_dir, notes, seed=7, after=0, kinds=("event", "flushed"))
    met = check_run(run_dir, notes)
    assert min(met["event"], met["flushed"]) > 0
    events = run_dir / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(b"".join(line for line in whole.splitlines(keepends=True)[1:]))
    with pytest.raises(AssertionError):
        check_run(run_dir, notes)
    events.write_bytes(whole)
    check_run(run_dir, notes)
    segment_paths(run_dir)[0].unlink()
    with pytest.raises(AssertionError):
        check_run(run_dir, notes)
