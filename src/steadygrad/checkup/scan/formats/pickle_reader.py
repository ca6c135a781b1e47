"""Reading a pickle's instructions without carrying them out.

A pickle is a program for a small stack machine; the instructions that build numbers, texts, lists and dictionaries are
harmless, and those that look a name up and call it can do anything. Here the harmless ones are carried out, and a
name stays a name: "calling" it makes a `Called` that remembers what would have been called and with what. Nothing is
imported, nothing of the file runs, and what can be seen of the tensors in it is all there. The decoding of the
instructions is `pickletools`', which only reads.

A file that names something with which programs are started, code is run or files are written is refused all the same:
no checkpoint needs it, and whoever loads the file should know. So is one that would call what it first computes, or
change what it imports. What a pickle may cost is limited: instructions, values on the stack, and objects made.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from .dangerous_names import class_like, dangerous, needless_call

MAX_PICKLE_BYTES = 64 << 20
# Together they keep what any pickle costs under two seconds and 200 MB. Those who write pickles empty the stack every
# thousand values, and a tensor takes about fifty instructions and ten objects.
MAX_INSTRUCTIONS = 2_500_000
MAX_OBJECTS = 600_000
MAX_STACK = 100_000
MAX_TEXT_BYTES = 1 << 20


class Refused(Exception):
    """Why a pickle was not read on, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class PickledName:
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
    """What a call or a new object would have been; `state`, `items` and `pairs` are what was put into it afterwards."""

    what: Any
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] | None = None
    pairs: Pairs | None = None

    @property
    def name(self) -> str:
        return str(self.what) if isinstance(self.what, PickledName) else ""


@dataclass(slots=True, eq=False)
class Persistent:
    """A reference to something kept outside of the pickle: a storage."""

    key: Any


@dataclass(slots=True)
class Pickle:
    """What a pickle would make, and every name it would import."""

    value: Any
    names: set[PickledName]


_Instruction = tuple[Callable[[Any], Any] | None, Callable[[Any], None]]
_MARK = object()
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
# How many bytes of length stand before a text, and how it is encoded: "" for bytes.
_TEXTS = {
    "SHORT_BINSTRING": (1, "latin-1"), "BINSTRING": (4, "latin-1"), "SHORT_BINUNICODE": (1, "utf-8"),
    "BINUNICODE": (4, "utf-8"), "BINUNICODE8": (8, "utf-8"), "SHORT_BINBYTES": (1, ""), "BINBYTES": (4, ""),
    "BINBYTES8": (8, ""), "BYTEARRAY8": (8, ""),
}  # fmt: skip


def read_pickle(data: bytes) -> Pickle:
    """What these bytes would make. Raises Refused."""
    return next_pickle(BytesIO(data))


def next_pickle(stream: BytesIO) -> Pickle:
    """The next of several pickles one after another; leaves the stream right behind it. Raises Refused."""
    machine = _PickleMachine()
    table, stack = _table(machine, stream), machine.stack
    try:
        for _ in range(MAX_INSTRUCTIONS):
            reader, action = table[stream.read(1)]
            action(reader(stream) if reader is not None else None)
            if len(stack) > MAX_STACK or machine.num_objects > MAX_OBJECTS or len(machine.memo) > MAX_OBJECTS:
                break
            if machine.stopped:
                return Pickle(machine.result, machine.names)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise Refused("its pickle is damaged or cut short") from error
    raise Refused("its pickle has more instructions, or nests more deeply, than a checkpoint's: it was not read on")


def _table(
    machine: _PickleMachine, stream: BytesIO
) -> dict[bytes, tuple[Callable[[Any], Any] | None, Callable[[Any], None]]]:
    """How the argument of each instruction is read, and what is done with it, by the instruction's byte."""
    size = stream.getbuffer().nbytes
    table: dict[bytes, _Instruction] = {}
    for opcode in pickletools.opcodes:
        name = opcode.name
        action: Callable[[Any], None] = getattr(machine, f"_{name.lower()}", machine._unknown)
        reader: Callable[[Any], Any] | None = opcode.arg.reader if opcode.arg is not None else None
        if name in _NUMBERS:
            action = machine.stack.append
        elif name in _CONSTANTS:
            action = _pusher(machine.stack, _CONSTANTS[name])
        elif name in _TEXTS:
            reader, action = _text_reader(*_TEXTS[name], size), machine.push_text
        elif name in ("STRING", "UNICODE"):
            action = machine.push_text
        table[opcode.code.encode("latin-1")] = reader, action
    return table


def _pusher(stack: list[Any], constant: Any) -> Callable[[Any], None]:
    return lambda argument: stack.append(constant)


def _text_reader(width: int, encoding: str, size: int) -> Callable[[BytesIO], Any]:
    """Reads a text with its length before it. Of one too long to be a name only the length is kept."""

    def read(stream: BytesIO) -> Any:
        length = int.from_bytes(stream.read(width), "little")
        if stream.tell() + length > size:
            raise ValueError
        if length > MAX_TEXT_BYTES:
            stream.seek(length, 1)
            return f"({length:,} bytes of text)" if encoding else b""
        data = stream.read(length)
        return data.decode(encoding, "surrogatepass") if encoding else data

    return read


class _PickleMachine:
    """The stack machine, with a memo for what is used again. IndexError, KeyError or TypeError mean a broken pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: set[PickledName] = set()
        self.result: Any = None
        self.stopped = False
        self.num_objects = 0

    def push(self, made: Any) -> None:
        """Push something that takes memory."""
        self.num_objects += 1
        self.stack.append(made)

    push_text = push

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

    def _named(self, module: Any, name: Any) -> PickledName:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        found = PickledName(module, name)
        if dangerous(module, name):
            raise Refused(
                f"on loading it asks for {str(found)[:200]}, with which code can be run: it was not read further, and "
                "should not be loaded"
            )
        self.names.add(found)
        return found

    def _calls(self, what: Any, arguments: tuple[Any, ...]) -> Any:
        if isinstance(what, Called) or (
            isinstance(what, PickledName) and str(what) in _GETATTR and not _plain_attribute(arguments)
        ):
            raise Refused(
                "on loading it calls something that it first computes, with which code can be run: it was not read "
                "further, and should not be loaded"
            )
        if isinstance(what, PickledName) and needless_call(what.module, what.name):
            raise Refused(
                f"on loading it calls {str(what)[:200]}, which no tensor needs: what that makes was not checked, and "
                "the file should not be loaded"
            )
        return _call(what, arguments)

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
        self.stopped = True

    # -- containers

    def _empty_tuple(self, argument: Any) -> None:
        self.push(())

    def _tuple(self, argument: Any) -> None:
        self.push(tuple(self._since_mark()))

    def _tuple1(self, argument: Any) -> None:
        self._replace(1, tuple(self._last(1)))

    def _tuple2(self, argument: Any) -> None:
        self._replace(2, tuple(self._last(2)))

    def _tuple3(self, argument: Any) -> None:
        self._replace(3, tuple(self._last(3)))

    def _replace(self, number: int, made: Any) -> None:
        self.num_objects += 1
        self.stack[-number:] = [made]

    def _last(self, number: int) -> list[Any]:
        if len(self.stack) < number:
            raise IndexError
        return self.stack[-number:]

    def _empty_list(self, argument: Any) -> None:
        self.push([])

    _empty_set = _empty_list

    def _list(self, argument: Any) -> None:
        self.push(self._since_mark())

    _frozenset = _list

    def _append(self, argument: Any) -> None:
        value = self.stack.pop()
        _items(self.stack[-1]).append(value)

    def _appends(self, argument: Any) -> None:
        values = self._since_mark()
        _items(self.stack[-1]).extend(values)

    _additems = _appends

    def _empty_dict(self, argument: Any) -> None:
        self.push(Pairs())

    def _dict(self, argument: Any) -> None:
        self.push(Pairs(_paired(self._since_mark())))

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
        self.push(self._named(module, name))

    def _stack_global(self, argument: Any) -> None:
        module, name = self._last(2)
        self.stack[-2:] = [self._named(module, name)]

    def _reduce(self, argument: Any) -> None:
        what, arguments = self._last(2)
        if not isinstance(arguments, tuple):
            raise TypeError
        self._replace(2, self._calls(what, arguments))

    _newobj = _reduce

    def _newobj_ex(self, argument: Any) -> None:
        what, arguments, keywords = self._last(3)
        made = self._calls(what, tuple(arguments))
        if isinstance(made, Called):
            made.state = keywords
        self._replace(3, made)

    def _inst(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        arguments = tuple(self._since_mark())
        self.push(self._calls(self._named(module, name), arguments))

    def _obj(self, argument: Any) -> None:
        what, *arguments = self._since_mark()
        self.push(self._calls(what, tuple(arguments)))

    def _build(self, argument: Any) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Called):
            target.state = state
        elif isinstance(target, Pairs) and isinstance(state, Pairs):
            target.pairs.extend(state.pairs)
        elif isinstance(target, PickledName):
            raise Refused(
                f"on loading it changes {str(target)[:200]}, with which code can be run: it was not read further, and "
                "should not be loaded"
            )

    def _persid(self, argument: Any) -> None:
        self.push(Persistent(argument))

    def _binpersid(self, argument: Any) -> None:
        self.push(Persistent(self.stack.pop()))


def _call(what: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(what, PickledName) and str(what) in (
        "collections.OrderedDict",
        "builtins.dict",
        "collections.defaultdict",
    ):
        made = Pairs()
        for argument in arguments:
            if isinstance(argument, Pairs):
                made.pairs.extend(argument.pairs)
            elif isinstance(argument, list):  # how old pickles hold an OrderedDict: a list of lists of two
                made.pairs.extend((pair[0], pair[1]) for pair in argument if isinstance(pair, list | tuple))
        return made
    return Called(what, arguments)


def _plain_attribute(arguments: tuple[Any, ...]) -> bool:
    """Whether getattr is asked for what pickles need it for: a member of an enumeration, a method of an object."""
    if len(arguments) != 2 or not isinstance(arguments[1], str) or arguments[1].startswith("__"):
        return False
    return class_like(arguments[0].name) if isinstance(arguments[0], PickledName) else True


def _items(target: Any) -> list[Any]:
    if isinstance(target, list):
        return target
    if isinstance(target, Called):
        if target.items is None:
            target.items = []
        return target.items
    raise TypeError


def _pairs(target: Any) -> list[tuple[Any, Any]]:
    if isinstance(target, Pairs):
        return target.pairs
    if isinstance(target, Called):
        if target.pairs is None:
            target.pairs = Pairs()
        return target.pairs.pairs
    raise TypeError


def _paired(values: list[Any]) -> list[tuple[Any, Any]]:
    if len(values) % 2:
        raise IndexError
    return list(zip(values[::2], values[1::2], strict=True))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value directly holds, with the name each part goes by: "" for one that has none."""
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
            for index, item in enumerate(value.items or ()):
                yield str(index), item
            yield "", value.pairs


def _label(key: Any) -> str:
    if isinstance(key, str):
        return key
    return str(key) if isinstance(key, float) or (isinstance(key, int) and key.bit_length() <= 64) else "?"
