"""Files, iterators and connections that a program holds, while its step is run again."""

from __future__ import annotations

import builtins
import csv
import io
import itertools
import json
import os
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steadygrad.engine.recovery.reruns.reached_state import reached_objects_kept
from steadygrad.engine.recovery.reruns.rehearsal import Rehearsal
from steadygrad.engine.recovery.reruns.sinks import HasEffect, nothing_on_disk
from steadygrad.engine.recovery.reruns.stand_ins import copied_iterator


class Program:
    """Objects of a program; `step` is what is run again."""

    def __init__(self, step: Callable[[Any], Any], **held: Any) -> None:
        self.step = step
        self.__dict__.update(held)


def again(program: Any, times: int = 2) -> list[Any]:
    """What the step returns when it is run again."""
    answers = []
    for _ in range(times):
        with reached_objects_kept([program]) as rehearsal, rehearsal.run():
            answers.append(program.step(program))
    return answers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with open(tmp_path / "log", "w") as file:
        file.write("own line\n")
        yield file


def content(path: Path) -> str:
    return path.read_text()


def test_what_is_written_to_an_open_file_goes_nowhere_and_the_file_goes_on(log: Any, tmp_path: Path) -> None:
    def step(program: Any) -> None:
        program.log.write("again\n")
        print("again", file=program.log)
        program.write("again\n")
        program.both[0].write("again\n")
        program.later()
        program.rows.writerow([1, 2])

    program = Program(
        step, log=log, write=log.write, both=(log, 1), later=partial(log.write, "again\n"), rows=csv.writer(log)
    )
    held = dict(vars(program))
    again(program)
    assert all(vars(program)[name] is value for name, value in held.items())
    program.rows.writerow([3])
    log.flush()
    assert content(tmp_path / "log") == "own line\n3\n"


def test_another_thread_writes_to_the_same_file_as_ever(log: Any, tmp_path: Path) -> None:
    def step(program: Any) -> None:
        program.log.write("again\n")
        thread = threading.Thread(target=lambda: program.log.write("of the thread\n"))
        type(program).start(thread)
        thread.join()

    Program.start = staticmethod(lambda thread: _started(thread))  # type: ignore[attr-defined]
    program = Program(step, log=log)
    with reached_objects_kept([program], strict=False) as rehearsal, rehearsal.run():
        program.step(program)
    log.flush()
    assert content(tmp_path / "log") == "own line\nof the thread\n"


def _started(thread: threading.Thread) -> None:
    thread.start()


@pytest.mark.parametrize("mode", ["w", "a", "x", "wb", "w+", "a+", "r+"])
def test_a_file_that_is_opened_inside_is_written_in_memory(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "there"
    if mode != "x":
        path.write_text("before\n")

    def step(_: Any) -> str:
        with open(path, mode) as file:
            file.write(b"again" if "b" in mode else "again")
            os.fsync(file.fileno())
            return f"{file.name} {file.tell()}"

    said = again(Program(step))
    assert said[0] == said[1] == f"{path} {12 if 'a' in mode else 5}"
    assert (path.read_text() == "before\n") if mode != "x" else not path.exists()


def test_libraries_write_in_memory_as_well(tmp_path: Path) -> None:
    def step(_: Any) -> None:
        torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
        np.save(tmp_path / "a.npy", np.ones(2))
        np.savez(tmp_path / "a.npz", a=np.ones(2))
        (tmp_path / "a.txt").write_text("a")
        os.makedirs(tmp_path, exist_ok=True)
        with open(tmp_path / "a.json", "w") as file:
            json.dump([1], file)

    again(Program(step))
    assert list(tmp_path.iterdir()) == []


def test_the_functions_that_open_files_are_the_programs_own_afterwards() -> None:
    before = (builtins.open, io.open, torch.save)
    with nothing_on_disk(), nothing_on_disk():
        assert builtins.open is not before[0]
    with pytest.raises(ZeroDivisionError), nothing_on_disk():
        raise ZeroDivisionError
    assert (builtins.open, io.open, torch.save) == before


def test_a_file_that_is_read_is_at_its_place_again(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("a\nb\nc\n")
    with open(tmp_path / "read") as file:
        file.readline()
        assert again(Program(lambda program: program.file.readline(), file=file)) == ["b\n", "b\n"]
        assert again(Program(lambda program: list(program.file), file=file)) == [["b\n", "c\n"]] * 2
        assert file.readline() == "b\n"


def test_a_file_whose_place_cannot_be_restored_is_not_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(reader) as file, open(writer, "w") as other:
        other.write("a\n")
        other.flush()
        with pytest.raises(HasEffect, match="whose position could not be restored"):
            again(Program(lambda program: program.file.readline(), file=file))
        assert file.readline() == "a\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: itertools.count(5), lambda: itertools.count(10, -2), lambda: itertools.count(0.5, 0.25),
        lambda: itertools.cycle("abc"), lambda: iter([1, 2, 3, 4]), lambda: iter((1, 2, 3, 4)), lambda: iter("abcd"),
        lambda: iter(range(9)), lambda: reversed([1, 2, 3, 4]), lambda: iter(b"abcd"), lambda: iter("äöüß"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_an_iterator_is_taken_from_in_a_copy(make: Callable[[], Iterator[Any]], taken: int) -> None:
    one, other = make(), make()
    for each in (one, other):
        list(itertools.islice(each, taken))
    program = Program(lambda program: list(itertools.islice(program.items, 2)), items=one)
    assert again(program) == [list(itertools.islice(copied_iterator(other) or iter(()), 2))] * 2
    assert list(itertools.islice(one, 3)) == list(itertools.islice(other, 3))


class Count:
    """A C object's stand-in is not needed for an iterator in Python."""

    def __init__(self) -> None:
        self.number = 0

    def __next__(self) -> int:
        self.number += 1
        return self.number


def test_an_iterator_of_the_programs_own_class_is_restored() -> None:
    program = Program(lambda program: next(program.items), items=Count())
    again(program)
    assert program.items.number == 0


def _letters() -> Iterator[str]:
    yield from "abc"


REFUSED: list[tuple[str, Any, Callable[[Any], Any]]] = [
    ("generator", lambda: _letters(), lambda it: next(it)),
    ("generator in a loop", lambda: _letters(), lambda it: [each + each for each in it]),
    ("zip", lambda: zip("ab", "cd", strict=True), lambda it: next(it)),
    ("queue", queue.Queue, lambda it: it.put(1)),
    ("simple queue", queue.SimpleQueue, lambda it: it.put(1)),
    ("database", lambda: sqlite3.connect(":memory:"), lambda it: it.execute("create table a (b int)")),
    ("process", None, lambda _: subprocess.run([sys.executable, "-c", ""], check=True)),
    ("thread", None, lambda _: threading.Thread(target=print).start()),
    ("descriptor", None, lambda _: os.write(1, b"again\n")),
    ("removed", None, lambda _: os.remove("there is no such file")),
    ("file that is not found", lambda: None, lambda it: next(iter(it)).write("again\n")),
]


@pytest.mark.parametrize(("name", "make", "use"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_cannot_be_undone_ends_the_run(name: str, make: Any, use: Any, log: Any, tmp_path: Path) -> None:
    held = make() if make is not None else None
    counted: list[int] = []
    if name == "file that is not found":
        held = frozenset([log])

    def step(program: Any) -> None:
        program.counted.append(1)
        use(program.held)

    program = Program(step, held=held, counted=counted)
    with pytest.raises(HasEffect):
        again(program)
    assert program.held is held
    assert counted == []
    assert sys.getprofile() is None
    log.flush()
    assert content(tmp_path / "log") == "own line\n"


class Table(dict[str, int]):
    """A class of the program whose methods are written in C."""


def test_methods_that_a_class_of_the_program_inherits_from_a_known_one_may_be_called() -> None:
    program = Program(lambda program: (program.table.update(a=1), program.table.get("a"))[1], table=Table())
    assert again(program) == [1, 1]
    assert program.table == {}


def test_a_run_that_was_ended_is_not_begun_a_second_time() -> None:
    begun: list[int] = []

    def run(rehearsal: Rehearsal) -> None:
        with rehearsal.run():
            begun.append(1)
            os.remove("there is no such file")

    with reached_objects_kept([]) as rehearsal:
        for _ in range(2):
            with pytest.raises(HasEffect, match="remove"):
                run(rehearsal)
    assert begun == [1]


def test_a_handler_of_the_program_does_not_hide_that_its_run_was_ended() -> None:
    def step(program: Any) -> None:
        try:
            next(program.letters)
        except BaseException:
            return

    program = Program(step, letters=_letters())
    with pytest.raises(HasEffect, match="generator"):
        again(program)


def test_a_stand_in_that_is_left_somewhere_is_the_original_afterwards(log: Any, tmp_path: Path) -> None:
    left: list[Any] = []
    program = Program(lambda program: None, log=log)
    with reached_objects_kept([program]):
        left.append(program.log)
    left[0].write("own\n")
    left[0].flush()
    assert left[0] is not log
    assert content(tmp_path / "log") == "own line\nown\n"
