"""Disks that are full, read-only, gone or broken: training goes on, the trouble is visible, what is kept is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steadygrad.journal import Journal, read_events, read_incidents, read_steps
from steadygrad.records import Incident, StepRecord
from steadygrad.records.errors import JournalError


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(place)):
        pytest.skip("mounting a file system needs root with the right to mount; the size limit test runs everywhere")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def fill(disk: Path) -> None:
    """Writes until nothing more fits."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(b"x" * 4096):
            pass
    assert shutil.disk_usage(disk).free == 0


def record(step: int) -> StepRecord:
    return StepRecord(run="r", step=step, batch_key=os.urandom(100).hex())


def test_a_full_disk_degrades_the_journal_and_space_brings_it_back(small_disk: Path) -> None:
    said: list[str] = []
    journal = Journal(small_disk / "run", flush_every=0.02, max_queue=200, on_degraded=said.append)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (100 << 10))
    slowest, step = 0.0, 0
    while journal.degraded is None and step < 20_000:
        start = time.perf_counter()
        journal.step(record(step))
        slowest = max(slowest, time.perf_counter() - start)
        step += 1
        time.sleep(0.0005)
    assert journal.degraded is not None
    assert "no space left on device" in journal.degraded
    assert until(lambda: said == [journal.degraded])
    last_before = step

    # Full: everything can still be called, quickly, and what cannot be kept is counted.
    start = time.monotonic()
    for _ in range(1000):
        journal.step(record(step))
        step += 1
    journal.event("during", number=1)
    journal.incident(Incident(number=journal.next_incident(), first_step=1, last_step=2, symptom="nan_loss"))
    journal.write_state({"step": step, "pad": "y" * 4000})
    assert time.monotonic() - start < 30.0
    assert not journal.flush(timeout=2.0)
    assert until(lambda: journal.dropped > 0)
    kept = [each.step for each in read_steps(small_disk / "run")]  # what is on the full disk reads well
    assert kept == list(range(len(kept)))

    ballast.unlink()
    assert until(lambda: journal.degraded is None), journal.degraded
    for _ in range(10):
        journal.step(record(step))
        step += 1
    assert journal.flush()
    assert journal.event("after", number=2)
    assert len(said) == 1
    dropped = journal.dropped
    journal.close()

    steps = [each.step for each in read_steps(small_disk / "run")]
    assert steps == sorted(set(steps))
    assert steps[-10:] == list(range(step - 10, step))
    assert len(steps) + dropped == step
    assert dropped > 0
    assert last_before > 0
    assert len(list((small_disk / "run" / "steps").glob("rank0-*.arrow"))) >= 2  # it went on in a new segment
    events = [event.kind for event in read_events(small_disk / "run")]
    assert events.count("during") == 1
    assert events.count("journal_degraded") == 1
    assert [incident.number for incident in read_incidents(small_disk / "run")] == [1]
    with Journal(small_disk / "run") as resumed:
        assert resumed.read_state() == {"step": last_before + 1000, "pad": "y" * 4000}
    assert slowest < 5.0  # a write that waited for the disk would never have come back


def test_closing_on_a_full_disk_comes_back_and_leaves_a_whole_journal(small_disk: Path) -> None:
    journal = Journal(small_disk / "run", flush_every=60)
    assert journal.event("first")
    journal.step(record(0))
    assert journal.flush()
    fill(small_disk)
    for step in range(1, 2000):
        journal.step(record(step))
    start = time.monotonic()
    journal.close()
    assert time.monotonic() - start < 30.0
    assert journal.dropped == 1999
    assert [each.step for each in read_steps(small_disk / "run")] == [0]
    # A line may still fit into the last page of a file that is there; a torn one is not left.
    assert read_events(small_disk / "run")[0].kind == "first"
    assert (small_disk / "run" / "events.jsonl").read_bytes().endswith(b"\n")


def test_a_read_only_disk_is_refused_with_a_sentence(small_disk: Path) -> None:
    Journal(small_disk / "run").close()
    assert mount("-o", "remount,ro", str(small_disk))
    for path in (small_disk / "run", small_disk / "new"):
        with pytest.raises(JournalError, match=r"cannot be written: read-only file system\..*pass a run_dir"):
            Journal(path)
    assert list(read_steps(small_disk / "run")) == []  # reading needs no writing


def test_a_full_disk_at_the_start_is_refused_with_a_sentence(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(JournalError, match="cannot be written: no space left on device"):
        Journal(small_disk / "run")


SIZE_LIMIT = """
import resource, sys, time
from steadygrad.journal import Journal
from steadygrad.journal import journal as room
from steadygrad.records import StepRecord
room._WAIT_S = 60.0  # a busy disk is not what is tested here
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
journal = Journal(sys.argv[1], flush_every=0.01)
assert journal.event("small")
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))  # no file may grow past this, as with a quota
for step in range(600):
    journal.step(StepRecord(run="r", step=step, batch_key="k" * 50))
    if step % 20 == 0:
        journal.flush()
assert not journal.event("large", pad="x" * 4000)
assert journal.degraded, "the limit was not felt"
assert "file too large" in journal.degraded, journal.degraded
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
deadline = time.monotonic() + 60
while journal.degraded and time.monotonic() < deadline:
    time.sleep(0.02)
assert journal.degraded is None, journal.degraded
assert journal.event("again")
journal.step(StepRecord(run="r", step=600))
assert journal.flush()
print(journal.dropped)
"""


def test_a_limit_on_file_size_degrades_and_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIZE_LIMIT, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [each.step for each in read_steps(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert len(steps) + int(done.stdout) == 601
    assert steps[-1] == 600
    kinds = [event.kind for event in read_events(tmp_path / "run")]
    assert kinds[0] == "small"
    assert kinds.count("large") == 1  # waited for the limit to go and was then written, once
    # What the journal tells of itself comes when its thread comes to it, so only the order of these two is certain.
    assert kinds.count("again") == 1
    assert kinds.index("large") < kinds.index("again")


def test_a_descriptor_that_dies_under_the_writer_costs_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", flush_every=0.02)
    journal.step(record(0))
    assert journal.flush()
    opened = journal._open
    assert opened is not None
    segment = opened.steps._segment
    assert segment is not None
    os.close(segment._descriptor)  # as after an input/output error: every write fails
    journal.step(record(1))
    journal.flush()
    assert until(lambda: journal.degraded is None)
    journal.step(record(2))
    assert journal.flush()
    assert journal.dropped == 0
    journal.close()
    assert [each.step for each in read_steps(tmp_path / "run")] == [0, 1, 2]


def test_a_run_directory_removed_during_the_run_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", flush_every=0.02)
    journal.step(record(0))
    assert journal.flush()
    shutil.rmtree(tmp_path / "run")
    journal.step(record(1))
    assert not journal.flush(timeout=3.0)
    assert journal.degraded is not None
    assert "the segment was removed" in journal.degraded
    assert not journal.event("lost")
    journal.close()
    assert journal.dropped >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's place needs root")
def test_a_run_one_may_not_read_or_write_is_one_sentence_each(tmp_path: Path) -> None:
    """Run as the user nobody, since root may read everything."""
    place = Path("/tmp") / f"steadygrad-forbidden-{os.getpid()}"
    Journal(place).close()
    code = (
        "import os, sys; from steadygrad.records.errors import JournalError; from steadygrad.journal import *\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "for attempt in (Journal, read_incidents, lambda path: list(read_steps(path))):\n"
        "    try:\n        attempt(sys.argv[1])\n    except JournalError as error:\n        print(error)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(place)
    sentences = done.stdout.splitlines()
    assert len(sentences) == 3, done.stderr
    assert all("permission denied" in sentence for sentence in sentences)
