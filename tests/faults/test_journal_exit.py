"""The ways a training script ends, and forks on its way: the journal is whole after each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from steadygrad.journal import Journal, read_events, read_steps

START = """
import os, signal, sys, time
from steadygrad.journal import Journal
from steadygrad.journal import journal as room
from steadygrad.records import StepRecord
room._WAIT_S = 60.0  # a busy disk is not what is tested here
journal = Journal(sys.argv[1], flush_every=60)  # so late that only the end of the process can have written
for step in range(50):
    journal.step(StepRecord(run="r", step=step))
"""


LOADED = """
import atexit
atexit.register(lambda: print([name for name in ("pandas", "torch") if name in sys.modules]))
"""


def run_script(path: Path, rest: str) -> subprocess.CompletedProcess[str]:
    script = path.with_name("train.py")
    script.write_text(START + LOADED + rest)
    return subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('the training script failed')", 1),
        (
            # A process started in the background may have been told to ignore Ctrl-C.
            "signal.signal(signal.SIGINT, signal.default_int_handler); journal.event('training')\n"
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
            -signal.SIGINT,
        ),
        ("del journal", 0),
    ],
    ids=["end of script", "exit", "exception", "ctrl-c", "forgotten"],
)
def test_a_script_that_never_closes_its_journal_leaves_it_whole(tmp_path: Path, rest: str, code: int) -> None:
    done = run_script(tmp_path / "run", rest)
    # Python ends itself by the signal, or with 1 where something ran in between.
    assert done.returncode in ((code, 1) if code < 0 else (code,)), done.stderr
    assert "pandas" not in done.stdout  # pyarrow would import it where it is installed, and take a second for it
    assert [record.step for record in read_steps(tmp_path / "run")] == list(range(50))
    data = (tmp_path / "run" / "steps" / "rank0-0001.arrow").read_bytes()
    assert pa.ipc.open_stream(data).read_all().num_rows == 50
    assert data.endswith(b"\xff\xff\xff\xff\0\0\0\0")  # the stream was ended, not just left


def test_a_forked_child_writes_nothing_of_its_parents_and_does_not_hold_its_run(tmp_path: Path) -> None:
    done = run_script(
        tmp_path / "run",
        """
child = os.fork()
if child == 0:
    journal.step(StepRecord(run="r", step=1000))
    assert not journal.event("from the child")
    assert not journal.flush()
    sys.exit(7)  # runs the exit handlers that were inherited
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
journal.step(StepRecord(run="r", step=50))
assert journal.event("from the parent")
""",
    )
    assert done.returncode == 0, done.stderr
    assert [record.step for record in read_steps(tmp_path / "run")] == list(range(51))
    assert [event.kind for event in read_events(tmp_path / "run")] == ["from the parent", "program_exited"]


def test_a_run_can_be_resumed_while_a_killed_writers_forked_child_lives_on(tmp_path: Path) -> None:
    script = START + (
        "assert journal.flush()\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(60)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    child = int(writer.stdout.readline())
    try:
        assert writer.wait() == -signal.SIGKILL
        with Journal(tmp_path / "run") as journal:
            assert journal.continued
            assert journal.event("resumed")
    finally:
        os.kill(child, signal.SIGKILL)
        writer.stdout.close()
    assert [record.step for record in read_steps(tmp_path / "run")] == list(range(50))
