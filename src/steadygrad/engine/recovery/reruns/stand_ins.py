"""Stand-ins for files, iterators and connections that the program holds, while its step is run again.

What is written to an open file goes nowhere, an iterator is taken from in a copy, and what can neither be held nor
restored (a generator, a queue, a database, a process) ends the run as soon as it is used: see `HasEffect`. A stand-in
is that for one thread only. To all others, and to all once it is over, it is the object in whose place it stands.
"""

from __future__ import annotations

import ast
import csv
import gc
import io
import itertools
import multiprocessing.process
import queue
import socket
import subprocess
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, NoReturn

from ....detect.tensors.foreign_objects import getattr, hasattr, isinstance
from .quiet import no_warnings
from .sinks import HasEffect, is_sink, sink_like

CSV_WRITER = type(csv.writer(io.StringIO()))
_UNCHANGING: tuple[Any, ...] = ([], (), "", "é", b"", range(0), range(1 << 70))
_COPIED: tuple[type, ...] = (*(type(iter(each)) for each in _UNCHANGING), type(reversed([])))
"""Iterators over what does not change; a copy of one goes on from the same place."""
_CLOSED = (
    queue.Queue, queue.SimpleQueue, socket.socket, subprocess.Popen, Executor, threading.Thread,
    multiprocessing.process.BaseProcess, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType,
)  # fmt: skip
_CLOSED_MODULES = (
    "sqlite3", "_sqlite3", "multiprocessing.", "_multiprocessing", "_queue", "psycopg", "redis", "pymongo",
)  # fmt: skip
_LOOKS = frozenset({
    "qsize", "empty", "full", "maxsize", "is_alive", "name", "ident", "daemon", "pid", "returncode", "total_changes",
    "in_transaction", "gi_running", "gi_frame", "gi_code",
})  # fmt: skip
"""What may be asked of an object that must not be used."""
_FEW = 16
_OF_FILES = frozenset({"closed", "name", "mode", "encoding", "fileno", "isatty", "readable", "writable"})
_OF_ITERATORS = ("builtins", "itertools", "_csv", "_io", "posix", "torch.utils.data.dataloader")


class StandIns:
    """All stand-ins of one time in which a step is run again. `strict`: what cannot be held ends the run."""

    def __init__(self, *, strict: bool = True) -> None:
        self.thread, self.strict = threading.get_ident(), strict
        self.over = False
        self.refused: str | None = None
        """Why a run was ended, if one was: also where the program's own handler took the exception."""
        self._made: dict[int, tuple[Any, Any]] = {}
        self._kinds: dict[type, Callable[[Any], Any] | None] = {}
        self._puts: list[tuple[Callable[[], Any], Callable[[Any], None], Any, Any]] = []

    @property
    def closed(self) -> str | None:
        """The first object that was found which must not be used, as a clause."""
        return next((f"it reaches {_name(v)}" for v, each in self._made.values() if type(each) is _Closed), None)

    @property
    def active(self) -> bool:
        return not self.over and threading.get_ident() == self.thread

    def of(self, value: Any) -> Any | None:
        """What stands for this value, or None where it needs nothing to."""
        kind = type(value)
        if kind not in self._kinds:
            self._kinds[kind] = self._how(kind)
        make = self._kinds[kind]
        if make is None:
            return None
        if id(value) not in self._made:
            self._made[id(value)] = (value, make(value))
        return self._made[id(value)][1]

    def knows(self, value: Any) -> bool:
        """Whether something stands for this value, and restores it."""
        return id(value) in self._made

    def put(self, value: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """If something has to stand for `value`, it is put in its place until `close`."""
        rebuild: Any = _REBUILT.get(type(value))
        stand_in = self.of(value) if rebuild is None else rebuild(value, self.of)
        if stand_in is not None:
            put(stand_in)
            self._puts.append((get, put, stand_in, value))

    def reset(self) -> None:
        """All as at first: for the next run."""
        for _, stand_in in self._made.values():
            if stand_in is not None:
                stand_in._reset()

    def close(self) -> None:
        """The program's own objects are in their places again."""
        self.over = True
        for get, put, stand_in, value in reversed(self._puts):
            try:
                if get() is stand_in:
                    put(value)
            except Exception:
                continue  # the place itself is gone
        self.reset()

    def refuse(self, why: str) -> NoReturn:
        self.refused = why
        raise HasEffect(why)

    def _how(self, kind: type) -> Callable[[Any], Any] | None:
        if issubclass(kind, StandIn | io.StringIO | io.BytesIO | type):
            return None
        if issubclass(kind, io.IOBase):
            return lambda value: None if is_sink(value) else _File(self, value)
        if kind is CSV_WRITER:
            return lambda value: _CsvWriter(self, value)
        if kind is types.BuiltinMethodType:
            return self._method
        if issubclass(kind, itertools.count | itertools.cycle) or kind in _COPIED:
            return lambda value: _Iterator(self, value)
        if not self.strict:
            return None
        if issubclass(kind, _CLOSED) or kind.__module__.startswith(_CLOSED_MODULES):
            return lambda value: _Closed(self, value)
        if kind.__module__ in _OF_ITERATORS and hasattr(kind, "__next__"):
            return lambda value: _Closed(self, value)
        return None

    def _method(self, value: Any) -> Any:
        """`write = file.write`: the same method of what stands for the file."""
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType | type):
            return None
        held = self.of(owner)
        return None if held is None else _Method(self, value, held)


def _tuple(value: tuple[Any, ...], of: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """The same with stand-ins in it, or None where it needs none."""
    held = [of(each) for each in value[:_FEW]]
    if all(each is None for each in held):
        return None
    return tuple(one if other is None else other for one, other in zip(value, held, strict=False)) + value[_FEW:]


def _partial(value: partial[Any], of: Callable[[Any], Any]) -> partial[Any] | None:
    whole: tuple[Any, ...] = (value.func, *value.args, *value.keywords.values())
    if (held := _tuple(whole, of)) is None:
        return None
    num, func = 1 + len(value.args), held[0]
    return partial(func, *held[1:num], **dict(zip(value.keywords, held[num:], strict=True)))


_REBUILT: dict[type, Callable[[Any, Callable[[Any], Any]], Any]] = {tuple: _tuple, partial: _partial}
"""What cannot be written to is made anew with stand-ins in it."""


class StandIn:
    """Passes everything on to the original, but in the one thread, in which `_target` says what it is given to."""

    __slots__ = ("_all", "_original")

    def __init__(self, stand_ins: StandIns, original: Any) -> None:
        object.__setattr__(self, "_all", stand_ins)
        object.__setattr__(self, "_original", original)

    def _reset(self) -> None:
        """As at first."""

    def _target(self, name: str) -> Any:
        raise NotImplementedError

    def _now(self, name: str) -> Any:
        return self._target(name) if self._all.active else self._original

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._now("set"), name, value)

    def __iter__(self) -> Iterator[Any]:
        target = self._now("__iter__")
        return self if target is self else iter(target)

    def __next__(self) -> Any:
        return next(self._now("__next__"))

    def __enter__(self) -> Any:
        return self._now("__enter__").__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._now("__exit__").__exit__(*error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._now("__call__")(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._now("__len__"))

    def __bool__(self) -> bool:
        return bool(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


class _File(StandIn):
    """An open file. What is written goes to a sink; one that is read is at its place again after each run."""

    __slots__ = ("_place", "_sink")

    def __init__(self, stand_ins: StandIns, original: Any) -> None:
        super().__init__(stand_ins, original)
        object.__setattr__(self, "_sink", None)
        object.__setattr__(self, "_place", None)

    def _target(self, name: str) -> Any:
        original = self._original
        if original.closed or name in _OF_FILES:
            return original
        if self._sink is None and self._place is None:
            self._begin(original)
        return original if self._sink is None else self._sink

    def _begin(self, original: Any) -> None:
        writes = original.writable()
        if writes and not original.readable():
            object.__setattr__(self, "_sink", sink_like(original))
            return
        try:
            if writes:
                raise OSError("read and written")
            object.__setattr__(self, "_place", original.tell())
            original.seek(self._place)
        except (OSError, ValueError):
            if self._all.strict:
                self._all.refuse(f"it reads {_name(original)}, whose position could not be restored")

    def _reset(self) -> None:
        if self._place is not None and not self._original.closed:
            self._original.seek(self._place)
        if self._sink is not None:
            self._sink.close()
        object.__setattr__(self, "_sink", None)
        object.__setattr__(self, "_place", None)


class _CsvWriter(StandIn):
    """A writer of `csv`, which holds its file where it cannot be exchanged."""

    __slots__ = ("_writer",)

    def __init__(self, stand_ins: StandIns, original: Any) -> None:
        super().__init__(stand_ins, original)
        object.__setattr__(self, "_writer", None)

    def _target(self, name: str) -> Any:
        if self._writer is None:
            file: Any = file_of_writer(self._original)
            if not isinstance(file, io.IOBase | StandIn):
                self._all.refuse("it writes with a csv.writer whose file is not known")
            into = self._all.of(file)
            nowhere = csv.writer(file if into is None else into, dialect=self._original.dialect)
            object.__setattr__(self, "_writer", nowhere)
        return self._writer

    def _reset(self) -> None:
        object.__setattr__(self, "_writer", None)


class _Method(StandIn):
    __slots__ = ("_held",)

    def __init__(self, stand_ins: StandIns, original: Any, held: Any) -> None:
        super().__init__(stand_ins, original)
        object.__setattr__(self, "_held", held)

    def _target(self, name: str) -> Any:
        return getattr(self._held, self._original.__name__)


class _Iterator(StandIn):
    """An iterator: a copy of it is taken from."""

    __slots__ = ("_copy",)

    def __init__(self, stand_ins: StandIns, original: Any) -> None:
        super().__init__(stand_ins, original)
        object.__setattr__(self, "_copy", None)

    def _target(self, name: str) -> Any:
        if name == "__iter__":
            return self
        if self._copy is None:
            object.__setattr__(self, "_copy", copied_iterator(self._original))
        if self._copy is None:
            if self._all.strict:
                self._all.refuse(f"it takes an item from {_name(self._original)}")
            return self._original
        return self._copy

    def _reset(self) -> None:
        object.__setattr__(self, "_copy", None)


class _Closed(StandIn):
    """Whoever uses this in the one thread ends the run."""

    __slots__ = ()

    def _target(self, name: str) -> Any:
        if name not in _LOOKS:
            self._all.refuse(f"it uses {_name(self._original)}")
        return self._original


def _name(value: Any) -> str:
    if isinstance(value, io.IOBase):
        return f"the file {getattr(value, 'name', type(value).__name__)!r}"
    if isinstance(value, types.GeneratorType):
        return f"the generator {value.__name__}"
    kind = type(value)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"an object of type {home}{kind.__name__}"


def file_of_writer(writer: Any) -> Any | None:
    """The file of a csv.writer: it keeps the file's method `write`."""
    for each in gc.get_referents(writer):
        if getattr(each, "__name__", "") == "write" and (owner := getattr(each, "__self__", None)) is not None:
            return owner
    return None


def copied_iterator(value: Any) -> Any | None:
    """An iterator that goes on from the same place, and leaves this one where it is; None where there is none."""
    with no_warnings():
        try:
            if type(value) in _COPIED:
                make, given, *place = value.__reduce__()
                again = make(*given)
                if place and place[0] is not None:
                    again.__setstate__(place[0])
                return again
            if type(value) is itertools.count:
                return itertools.count(*ast.literal_eval(f"[{repr(value)[len('count(') : -1]}]"))
            if type(value) is itertools.cycle:
                parts: Any = value.__reduce__()
                (inner,), (saved, first) = parts[1:]
                if (begun := copied_iterator(inner)) is None:
                    return None
                cycle: Any = itertools.cycle(begun)
                cycle.__setstate__((list(saved), first))
                return cycle
        except (TypeError, AttributeError, ValueError, SyntaxError):
            return None
    return None
