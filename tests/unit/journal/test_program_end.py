"""How a program ended is written down in its run by everyone who can know it, and every reader says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import steadygrad as sg
from steadygrad.journal import Journal, read_events
from steadygrad.journal.program_end import ENDED, end_from, told_of
from steadygrad.records import StepRecord
from steadygrad.reporters.checklist.checks import CheckOptions, Mark, RunEvidence, checklist
from steadygrad.reporters.run_data.follow_run import RunFollower
from steadygrad.reporters.run_data.run_state import RunState
from steadygrad.reporters.run_data.run_summary import summarise

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
STEADY_RUN = (sys.executable, "-m", "steadygrad.commands", "run")
LOOP = """
import sys, time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).pow(2).mean().backward()
    optimizer.step()
"""


HANDLED = "by ValueError: x; the program went on and exited normally"


def guard(where: Path) -> sg.Guard:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sg.Guard(model, optimizer, lambda model, batch: model(batch).pow(2).mean(), run_dir=where)


def told(run: Path) -> tuple[RunState, Mark, str]:
    follower = RunFollower(run)
    follower.poll()
    story = summarise(run, follower)
    line = checklist(RunEvidence(story=story), CheckOptions())[0]
    return story.state, line.mark, line.detail


def left_by(run: Path, error: BaseException) -> None:
    def train() -> None:
        with guard(run) as made:
            made.step(torch.randn(3, 4))
            raise error

    with pytest.raises(type(error)):
        train()


@pytest.mark.parametrize(
    ("error", "word", "sentence"),
    [
        (ValueError("my own bug\nand more of it"), "crashed", "ended at step 0 by ValueError: my own bug"),
        (KeyboardInterrupt(), "interrupted", "interrupted at step 0"),
        (SystemExit(5), "crashed", "ended at step 0 with exit code 5"),
        (AssertionError(), "crashed", "ended at step 0 by AssertionError"),
    ],
)
def test_an_exception_that_leaves_the_guards_block_fails_the_checklist(
    tmp_path: Path, error: BaseException, word: str, sentence: str
) -> None:
    left_by(tmp_path / "run", error)
    state, mark, detail = told(tmp_path / "run")
    assert (state.word, state.sentence) == (word, sentence)
    assert (mark, detail) == (Mark.FAIL, sentence)


def test_a_guard_that_is_closed_while_an_exception_passes_says_so(tmp_path: Path) -> None:
    made = guard(tmp_path / "run")

    def train() -> None:
        try:
            made.step(torch.randn(3, 4))
            raise OSError("disk gone")
        finally:
            made.close()

    with pytest.raises(OSError, match="disk gone"):
        train()
    assert told(tmp_path / "run")[0].sentence == "ended at step 0 by OSError: disk gone"


def test_an_exception_from_before_the_run_is_not_its_end(tmp_path: Path) -> None:
    try:
        raise ValueError("bf16 is not supported")
    except ValueError:
        with guard(tmp_path / "run") as made:
            made.step(torch.randn(3, 4))
    assert told(tmp_path / "run")[:2] == (RunState(word="ended", sentence="ended at step 0"), Mark.PASS)


def test_the_first_answer_stands_and_a_second_program_gives_its_own(tmp_path: Path) -> None:
    left_by(tmp_path / "run", ValueError("first"))
    with Journal(tmp_path / "run") as journal:
        journal.step(StepRecord(run="", step=1, loss=1.0, grad_norm=1.0, applied=True))
        journal.ended()
        journal.ended(ValueError("too late"))
    assert [event.data["how"] for event in read_events(tmp_path / "run") if event.kind == ENDED] == [
        "error",
        "finished",
    ]
    assert told(tmp_path / "run")[0].word == "ended"


def test_a_run_of_an_earlier_version_is_not_said_to_have_come_to_its_end(tmp_path: Path) -> None:
    with guard(tmp_path / "run") as made:
        made.step(torch.randn(3, 4))
    events = tmp_path / "run" / "events.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if ENDED not in line))
    state, mark, detail = told(tmp_path / "run")
    assert (state.word, mark) == ("ended", Mark.OPEN)
    assert detail == "ended at step 0; how the program ended is not known"


@pytest.mark.parametrize(
    ("ended", "exited", "how", "sentence"),
    [
        ([{"how": "exit"}], {"code": 0}, "finished", ""),
        ([{"how": "exit"}], {"code": 3}, "error", "with exit code 3"),
        ([], {"code": -signal.SIGKILL}, "error", "by the signal SIGKILL"),
        ([], {"code": -signal.SIGINT}, "interrupted", ""),
        ([told_of(ValueError("x"))], {"code": 1}, "error", "by ValueError: x"),
        ([told_of(ValueError("x"))], {}, "error", "by ValueError: x"),
        ([told_of(None), told_of(ValueError("on rank 1"))], {}, "error", "by ValueError: on rank 1"),
        ([told_of(ValueError("x"))], {"code": 0}, "not known", HANDLED),
        ([told_of(SystemExit(5))], {"how": "exit"}, "error", "with exit code 5"),
        ([told_of(SystemExit(0))], {}, "finished", ""),
        ([{"how": "of a later version"}], {}, "not known", ""),
        ([], {}, "not known", ""),
    ],
)  # fmt: skip
def test_what_the_process_said_and_what_was_seen_of_its_exit_make_one_answer(
    ended: list[dict[str, Any]], exited: dict[str, Any], how: str, sentence: str
) -> None:
    end = end_from(ended, exited)
    assert (end.how, end.sentence) == (how, sentence)


def steady_run(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(text)
    return subprocess.run(
        [*STEADY_RUN, "--run-dir", "run", *options, "train.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True,
        text=True, check=False, timeout=240,
    )  # fmt: skip


def test_a_program_that_crashes_under_steady_run_is_said_to_have_crashed(tmp_path: Path) -> None:
    done = steady_run(tmp_path, LOOP + "raise RuntimeError('shapes do not fit')\n")
    assert done.returncode == 1
    assert "ended     by RuntimeError: shapes do not fit" in done.stderr
    assert told(tmp_path / "run")[1:] == (Mark.FAIL, "ended at step 4 by RuntimeError: shapes do not fit")


def test_an_exit_code_that_only_steady_run_can_know_is_kept(tmp_path: Path) -> None:
    done = steady_run(tmp_path, LOOP + "sys.exit(3)\n", "--json")
    assert done.returncode == 3
    answer = json.loads(done.stderr.splitlines()[-1])
    found = {key: answer[key] for key in ("exit_code", "ended", "ended_by", "ended_early")}
    assert found == {"exit_code": 3, "ended": "error", "ended_by": "exit code 3", "ended_early": True}
    assert told(tmp_path / "run")[1:] == (Mark.FAIL, "ended at step 4 with exit code 3")


def test_an_interrupted_program_is_said_to_have_been_interrupted(tmp_path: Path) -> None:
    listens = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it may be ignored
    (tmp_path / "train.py").write_text(listens + LOOP + "open('ready', 'w').close()\ntime.sleep(120)\n")
    child = subprocess.Popen(
        [*STEADY_RUN, "--run-dir", "run", "train.py"], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    for _ in range(1200):
        if (tmp_path / "ready").exists():
            break
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    _, shown = child.communicate(timeout=120)
    assert "ended     interrupted" in shown
    assert told(tmp_path / "run")[1:] == (Mark.FAIL, "interrupted at step 4")


def test_a_guard_that_was_never_closed_hears_of_the_exception_that_ends_the_program(tmp_path: Path) -> None:
    text = """
import sys, torch, steadygrad as sg
def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = sg.attach(optimizer, model=model, run_dir=sys.argv[1])
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    if sys.argv[2] == "bad":
        raise ValueError("it was never closed")
main()
"""
    for name, mark, said in (
        ("bad", Mark.FAIL, "ended at step 0 by ValueError: it was never closed"),
        ("good", Mark.PASS, "ended at step 0; no exception ended the program, and its exit code was not seen"),
    ):
        subprocess.run([sys.executable, "-c", text, tmp_path / name, name], env=ENVIRONMENT, check=False, timeout=240)
        assert told(tmp_path / name)[1:] == (mark, said)
