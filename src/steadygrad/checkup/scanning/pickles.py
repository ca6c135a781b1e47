"""Reading a pickle's instructions without carrying them out.

A pickle is a program for a small stack machine; the instructions that build numbers, texts, lists and dictionaries are
harmless, and those that look a name up and call it can do anything. Here the harmless ones are carried out, and a
name stays a name: "calling" it makes a `Called` that remembers what would have been called and with what. Nothing is
imported, nothing of the file runs, and what can be seen of the tensors in it is all there. The decoding of the
instructions is `pickletools`', which only reads.

A file that names something with which programs are started, code is run or files are written is refused all the same:
no checkpoint needs it, and whoever loads the file should know.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from .dangerous import dangerous

MAX_PICKLE_BYTES = 64 << 20
MAX_INSTRUCTIONS = 8_000_000


class Refused(Exception):
    """Why a pickle was not read on, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Name:
    """Something the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Pairs:
    """A dictionary, as its pairs: a hostile key need not be hashable."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The last value under a text key, as a dictionary would have it; None if there is none."""
        return next((value for name, value in reversed(self.pairs) if isinstance(name, str) and name == key), None)


@dataclass(slots=True, eq=False)
class Called:
    """What a call or a new object would have been; `state` and `items` are what was put into it afterwards."""

    what: Any
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: Pairs = field(default_factory=Pairs)

    @property
    def name(self) -> str:
        return str(self.what) if isinstance(self.what, Name) else ""


@dataclass(slots=True, eq=False)
class Persistent:
    """A reference to something kept outside of the pickle: a storage."""

    key: Any


@dataclass(slots=True)
class Pickle:
    """What a pickle would make, and every name it would import."""

    value: Any
    names: set[Name]


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PUSH = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip


def read_pickle(data: bytes) -> Pickle:
    """What these bytes would make. Raises Refused."""
    return next_pickle(BytesIO(data))


def next_pickle(stream: BytesIO) -> Pickle:
    """The next of several pickles one after another; leaves the stream right behind it. Raises Refused."""
    machine = _Machine()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if number > MAX_INSTRUCTIONS:
                raise Refused("its pickle is longer than any checkpoint's")
            machine.do(opcode.name, argument)
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise Refused("its pickle is damaged or cut short") from error
    return Pickle(machine.result, machine.names)


class _Machine:
    """The stack machine, with a memo for what is used again. IndexError, KeyError or TypeError mean a broken pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: set[Name] = set()
        self.result: Any = None

    def do(self, opcode: str, argument: Any) -> None:
        if opcode in _PUSH:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        else:
            # A closed set: pickletools knows these instructions and no others.
            getattr(self, f"_{opcode.lower()}", self._unknown)(argument)

    def _unknown(self, argument: Any) -> None:
        raise Refused("its pickle holds an instruction that no checkpoint uses")

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def _named(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        found = Name(module, name)
        if dangerous(module, name):
            raise Refused(
                f"on loading it asks for {str(found)[:200]}, with which code can be run: it was not read further, and "
                "should not be loaded"
            )
        self.names.add(found)
        return found

    # -- stack and memo

    def _proto(self, argument: Any) -> None: ...

    def _frame(self, argument: Any) -> None: ...

    def _mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, argument: Any) -> None:
        self.stack.pop()

    def _pop_mark(self, argument: Any) -> None:
        self._since_mark()

    def _dup(self, argument: Any) -> None:
        self.stack.append(self.stack[-1])

    def _put(self, argument: Any) -> None:
        self.memo[int(argument)] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, argument: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])

    _binget = _long_binget = _get

    def _stop(self, argument: Any) -> None:
        self.result = self.stack.pop()

    # -- containers

    def _empty_tuple(self, argument: Any) -> None:
        self.stack.append(())

    def _tuple(self, argument: Any) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _tuple1(self, argument: Any) -> None:
        self.stack[-1:] = [tuple(self._last(1))]

    def _tuple2(self, argument: Any) -> None:
        self.stack[-2:] = [tuple(self._last(2))]

    def _tuple3(self, argument: Any) -> None:
        self.stack[-3:] = [tuple(self._last(3))]

    def _last(self, number: int) -> list[Any]:
        if len(self.stack) < number:
            raise IndexError
        return self.stack[-number:]

    def _empty_list(self, argument: Any) -> None:
        self.stack.append([])

    _empty_set = _empty_list

    def _list(self, argument: Any) -> None:
        self.stack.append(self._since_mark())

    _frozenset = _list

    def _append(self, argument: Any) -> None:
        value = self.stack.pop()
        _items(self.stack[-1]).append(value)

    def _appends(self, argument: Any) -> None:
        values = self._since_mark()
        _items(self.stack[-1]).extend(values)

    _additems = _appends

    def _empty_dict(self, argument: Any) -> None:
        self.stack.append(Pairs())

    def _dict(self, argument: Any) -> None:
        self.stack.append(Pairs(_paired(self._since_mark())))

    def _setitem(self, argument: Any) -> None:
        key, value = self._last(2)
        del self.stack[-2:]
        _pairs(self.stack[-1]).append((key, value))

    def _setitems(self, argument: Any) -> None:
        values = self._since_mark()
        _pairs(self.stack[-1]).extend(_paired(values))

    # -- names and what would be made with them

    def _global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(self._named(module, name))

    def _stack_global(self, argument: Any) -> None:
        module, name = self._last(2)
        self.stack[-2:] = [self._named(module, name)]

    def _reduce(self, argument: Any) -> None:
        what, arguments = self._last(2)
        if not isinstance(arguments, tuple):
            raise TypeError
        self.stack[-2:] = [_call(what, arguments)]

    _newobj = _reduce

    def _newobj_ex(self, argument: Any) -> None:
        what, arguments, keywords = self._last(3)
        self.stack[-3:] = [Called(what, tuple(arguments), state=keywords)]

    def _inst(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        arguments = tuple(self._since_mark())
        self.stack.append(_call(self._named(module, name), arguments))

    def _obj(self, argument: Any) -> None:
        what, *arguments = self._since_mark()
        self.stack.append(_call(what, tuple(arguments)))

    def _build(self, argument: Any) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Called):
            target.state = state
        elif isinstance(target, Pairs) and isinstance(state, Pairs):
            target.pairs.extend(state.pairs)

    def _persid(self, argument: Any) -> None:
        self.stack.append(Persistent(argument))

    def _binpersid(self, argument: Any) -> None:
        self.stack.append(Persistent(self.stack.pop()))


def _call(what: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(what, Name) and str(what) in ("collections.OrderedDict", "builtins.dict", "collections.defaultdict"):
        made = Pairs()
        for argument in arguments:
            if isinstance(argument, Pairs):
                made.pairs.extend(argument.pairs)
            elif isinstance(argument, list):  # how old pickles hold an OrderedDict: a list of lists of two
                made.pairs.extend((pair[0], pair[1]) for pair in argument if isinstance(pair, list | tuple))
        return made
    return Called(what, arguments)


def _items(target: Any) -> list[Any]:
    if isinstance(target, list):
        return target
    if isinstance(target, Called):
        return target.items
    raise TypeError


def _pairs(target: Any) -> list[tuple[Any, Any]]:
    if isinstance(target, Pairs):
        return target.pairs
    if isinstance(target, Called):
        return target.pairs.pairs
    raise TypeError


def _paired(values: list[Any]) -> list[tuple[Any, Any]]:
    if len(values) % 2:
        raise IndexError
    return list(zip(values[::2], values[1::2], strict=True))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value directly holds, with the name each part goes by: "" for one that has none of its own."""
    match value:
        case Pairs():
            for key, item in value.pairs:
                yield _label(key), item
        case list() | tuple():
            for index, item in enumerate(value):
                yield str(index), item
        case Called():
            alone = len(value.arguments) == 1 or value.name.startswith("torch._utils._rebuild")
            for index, item in enumerate(value.arguments):
                yield "" if alone else str(index), item
            yield "", value.state
            for index, item in enumerate(value.items):
                yield str(index), item
            yield "", value.pairs


def _label(key: Any) -> str:
    return key if isinstance(key, str) else str(key) if isinstance(key, int | float | bool) else "?"
