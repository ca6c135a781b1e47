"""Starts journal writers that are meant to be killed. Not a test: run by test_journal_kill.py.

Reads lines "mode run_dir acknowledgements seed" and for each forks a writer, prints its process id, waits for its end
and prints how it ended. Forked from one process that has imported everything, a writer is at work within milliseconds,
so a thousand of them can be killed in minutes. What a writer was told is on disk it notes in the file of
acknowledgements, by a plain write after the fact: a note that is there is a promise that was made.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from steadygrad.journal import Journal
from steadygrad.journal.safe_files import json_bytes, replace_file
from steadygrad.journal.steps.columns import batch_of, row_of
from steadygrad.journal.steps.segment import encode_batch
from steadygrad.records import Incident, StepRecord

NAMES = [f"layer.{number}" for number in range(20)]
HELD_AT = ("write", "fsync", "replace")


def made(step: int) -> StepRecord:
    """The record of a step, the same in the writer and in the test."""
    value = random.Random(step)
    return StepRecord(
        run="killed",
        step=step,
        time=float(step),
        batch_key=f"batch {step} " + "x" * value.randrange(200),
        loss=value.choice((value.random(), float("inf"), float("-inf"))),
        terms={"ce": value.random()},
        grad_norm=value.random(),
        norms=tuple(value.randrange(1 << 11) / 8 for _ in NAMES),
        applied=step % 5 != 0,
        flags=("SY101",) if step % 5 == 0 else (),
    )


def payload(number: int, length: int) -> dict[str, object]:
    """A state whose halves would not fit together."""
    return {"number": number, "body": [number] * length, "again": number}


def write_journal(run_dir: str, acknowledgements: str, seed: int) -> None:
    chance = random.Random(seed)
    notes = os.open(acknowledgements, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    journal = Journal(run_dir, names=NAMES, flush_every=0.002, merge_after=5, segment_bytes=40_000, norms_every=1)
    state = journal.read_state() or {"number": 0}
    said = Path(acknowledgements).read_text().splitlines()
    step = max((int(line.split()[1]) for line in said if line.startswith("put")), default=-1) + 1
    os.write(notes, b"start %d\n" % step)
    number = journal.next_incident()
    while True:
        for _ in range(chance.randrange(1, 30)):
            os.write(notes, b"put %d\n" % step)
            journal.step(made(step))
            step += 1
        match chance.randrange(5):
            case 0 | 1 if journal.flush():
                os.write(notes, b"flushed %d\n" % (step - 1))
            case 2 if journal.event("tick", step=step, pad="y" * chance.randrange(2000)):
                os.write(notes, b"event %d\n" % step)
            case 3 if journal.incident(Incident(number=number, first_step=0, last_step=step, symptom="nan_loss")):
                os.write(notes, b"incident %d %d\n" % (number, step))
            case 4:
                state = payload(int(state["number"]) + 1, 2000)  # type: ignore[call-overload]
                if journal.write_state(state):
                    os.write(notes, b"state %d\n" % state["number"])
                if journal.quarantine(f"batch {step}", step=step, rows=[1, 2]):
                    os.write(notes, b"quarantined %d\n" % step)


def replace_json(run_dir: str, acknowledgements: str, seed: int) -> None:
    """Does nothing but replace one large JSON file, so that most kills fall inside a replacement."""
    notes = os.open(acknowledgements, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    path = Path(run_dir) / "whole.json"
    number = 0
    while True:
        number += 1
        replace_file(path, json_bytes(payload(number, 20_000)))
        os.write(notes, b"state %d\n" % number)


def hold_inside_replacement(run_dir: str, acknowledgements: str, seed: int) -> None:
    """Replaces one file whole, then stops for ever inside the next replacement, at the system call `seed` chooses.

    The kill that comes after falls inside a replacement on every machine and file system, however fast.
    """
    notes = os.open(acknowledgements, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    path = Path(run_dir) / "whole.json"
    replace_file(path, json_bytes(payload(1, 20_000)))
    name, write = HELD_AT[seed % len(HELD_AT)], os.write

    def held(*args: Any) -> None:
        if name == "write":
            write(args[0], args[1][: len(args[1]) // 2])
        write(notes, b"state 1\n")
        while True:
            signal.pause()

    setattr(os, name, held)
    replace_file(path, json_bytes(payload(2, 20_000)))


MODES = {"journal": write_journal, "json": replace_json, "held": hold_inside_replacement}


def main() -> None:
    encode_batch(batch_of([row_of(made(0), (), norms=True)]), level=1)  # what pyarrow loads on first use, loaded once
    for line in sys.stdin:
        mode, run_dir, acknowledgements, seed = line.split()
        writer = os.fork()
        if writer == 0:
            try:
                MODES[mode](run_dir, acknowledgements, int(seed))
            except BaseException as error:
                print(f"failed {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        print(writer, flush=True)
        _, status = os.waitpid(writer, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
