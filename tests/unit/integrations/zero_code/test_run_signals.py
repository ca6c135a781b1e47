"""A signal reaches the program once, whoever sent it and to whom; terminals and job control work as without us."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEADY = [sys.executable, "-m", "steadygrad.commands"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

# Saves when it is interrupted. A second signal during the save ends it half written.
SAVER = """
import os, signal, sys, time

count = 0

def asked(number, frame):
    global count
    count += 1
    if count > 1:
        print("lost", flush=True)
        os._exit(77)
    raise KeyboardInterrupt

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT):
    signal.signal(number, asked)
try:
    print("ready", os.getppid(), flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    for _ in range(20):
        time.sleep(0.05)
    print("saved", count, flush=True)
sys.exit(5)
"""


@pytest.fixture
def saver(tmp_path: Path) -> Path:
    path = tmp_path / "saver.py"
    path.write_text(SAVER)
    return path


def with_default_signals() -> None:
    """A suite that was started in the background hands signals on that are ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(words: list[str], where: Path, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, cwd=where, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=with_default_signals, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def started(process: subprocess.Popen[str]) -> int:
    """The process id of the supervisor, once the program runs."""
    assert process.stdout is not None
    word, parent = process.stdout.readline().split()
    assert word == "ready"
    return int(parent)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT])
@pytest.mark.parametrize("target", ["group", "supervisor"])
def test_a_signal_to_the_group_or_to_the_supervisor_arrives_once(
    number: signal.Signals, target: str, saver: Path, tmp_path: Path
) -> None:
    process = start([*STEADY, "run", "saver.py"], tmp_path, start_new_session=True)
    supervisor = started(process)
    assert supervisor == process.pid
    if target == "group":
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("saved 1\n", 5)


def test_a_signal_sent_to_every_process_in_turn_arrives_once(saver: Path, tmp_path: Path) -> None:
    """As a scheduler does that knows the processes of a job by their control group."""
    process = start([*STEADY, "run", "saver.py"], tmp_path, start_new_session=True)
    started(process)
    listed = subprocess.run(["ps", "-o", "pid=", "-g", str(process.pid)], capture_output=True, text=True, check=True)
    for pid in listed.stdout.split():
        os.kill(int(pid), signal.SIGTERM)
        time.sleep(0.005)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("saved 1\n", 5)


def test_two_signals_to_the_group_are_two_for_the_program(saver: Path, tmp_path: Path) -> None:
    process = start([*STEADY, "run", "saver.py"], tmp_path, start_new_session=True)
    started(process)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("lost\n", 77)


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs timeout(1)")
@pytest.mark.parametrize("words", [[], ["--foreground"]])
def test_timeout_interrupts_the_program_as_without_us(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "saver.py").write_text(SAVER.replace("if count > 1:", "if count > 2:"))  # timeout(1) itself sends two
    process = start(["timeout", *words, "-s", "INT", "6", *STEADY, "run", "saver.py"], tmp_path, start_new_session=True)
    started(process)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("saved ")
    assert process.returncode == 124


def test_a_program_started_by_a_shell_in_the_same_group_is_interrupted_once(saver: Path, tmp_path: Path) -> None:
    """The group of a command in a script is the script's own."""
    script = f"trap : INT; {' '.join(STEADY)} run saver.py; echo code $?"
    process = start(["sh", "-c", script], tmp_path, start_new_session=True)
    started(process)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "saved 1\ncode 5\n"


def test_no_process_stays_behind(saver: Path, tmp_path: Path) -> None:
    process = start([*STEADY, "run", "saver.py"], tmp_path, start_new_session=True)
    started(process)
    process.kill()
    assert process.stdout is not None
    with process.stdout:
        process.stdout.read()  # the program gets SIGTERM and saves
    process.wait(timeout=60)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the group is still there")


# -- at a terminal


class Terminal:
    """An interactive shell at a pseudo-terminal."""

    def __init__(self, where: Path) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            with_default_signals()
            os.chdir(where)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**ENVIRONMENT, "PS1": "$ ", "TERM": "dumb"})
        self.text = ""

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, timeout: float = 60) -> str:
        """Read until this appears; returns what came before it and goes on behind it."""
        deadline = time.monotonic() + timeout
        while text not in self.text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not appear in {self.text!r}")
            self.text += os.read(self._master, 4096).decode(errors="replace")
        before, _, self.text = self.text.partition(text)
        return before

    def close(self) -> None:
        os.close(self._master)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(saver: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


RUN = f"{' '.join(STEADY)} run saver.py 2>/dev/null; echo code $?\n"


def test_control_c_at_a_terminal_arrives_once(terminal: Terminal) -> None:
    terminal.send(RUN)
    terminal.expect("\nready ")
    terminal.send("\x03")
    assert "lost" not in terminal.expect("saved 1")
    terminal.expect("code 5")


def test_kill_of_the_supervisor_alone_at_a_terminal_arrives_once(terminal: Terminal) -> None:
    terminal.send(RUN)
    terminal.expect("\nready ")
    supervisor = int(terminal.expect("\r\n"))
    os.kill(supervisor, signal.SIGINT)
    assert "lost" not in terminal.expect("saved 1")
    terminal.expect("code 5")


def test_a_program_can_be_stopped_and_continued_at_a_terminal(terminal: Terminal) -> None:
    terminal.send(f"{' '.join(STEADY)} run saver.py 2>/dev/null\n")
    terminal.expect("\nready ")
    terminal.send("\x1a")
    terminal.expect("Stopped")
    terminal.send("fg\n")
    time.sleep(1.0)
    terminal.send("\x03")
    assert "lost" not in terminal.expect("saved 1")
    terminal.send("echo code $?\n")
    terminal.expect("code 5")
