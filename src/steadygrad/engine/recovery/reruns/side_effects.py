"""Lines of the program are run again without effect: nothing is printed, logged, written, sent or drawn.

The first run is supervised: each call is looked at before it is made, and one that would leave a trace outside of this
process's own Python objects ends the run. So does writing into a tensor that was there before and that is not restored.
What passed once is run again without supervision, silently.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import inspect
import io
import os
import socket
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from ....detect.tensors.foreign_objects import getattr, is_tensor, isinstance
from ....detect.tensors.torch_private import TorchDispatchMode
from .sinks import HasEffect as HasEffect
from .sinks import is_read_inside, is_sink
from .stand_ins import CSV_WRITER, StandIn, StandIns, file_of_writer
from .user_state import UserState, is_users

_WRITING = frozenset({
    "write", "writelines", "writerow", "writerows", "truncate", "send", "sendall", "sendto", "sendmsg", "send_bytes",
    "put", "commit", "execute",
})  # fmt: skip
_READING = frozenset({"read", "readline", "readlines", "readinto", "read1", "seek"})
_OS_WRITING = frozenset({
    "write", "open", "remove", "unlink", "rename", "replace", "mkdir", "makedirs", "rmdir", "system", "kill", "fork",
    "truncate", "link", "symlink", "chmod", "posix_spawn", "execv", "execve", "putenv", "chdir", "pwrite", "sendfile",
})  # fmt: skip
_OS = frozenset({
    "posix", "nt", "_posixsubprocess", "_queue", "_socket", "_multiprocessing", "_sqlite3", "_dbm", "fcntl",
})  # fmt: skip
_KNOWN_KINDS = frozenset({
    "torch", "numpy", "scipy", "pandas", "sklearn", "PIL", "tokenizers", "builtins", "collections", "_collections",
    "_io", "itertools", "functools", "_functools", "random", "_random", "re", "_sre", "math", "_operator", "operator",
    "datetime", "decimal", "fractions", "_thread", "_weakref", "weakref", "_struct", "_contextvars", "_abc", "abc",
    "_hashlib", "_md5", "_sha1", "_sha2", "_blake2", "_json", "unicodedata", "time", "sentencepiece", "tiktoken",
    "typing", "types", "einops", "regex", "_collections_abc", "_bisect", "_heapq", "array", "mmap", "zlib", "enum",
})  # fmt: skip
"""Libraries whose objects, written in C, keep nothing outside of themselves that a method would change."""
_NOT_CALLED = (
    ("torch/serialization.py", ("save",)),
    ("torch/utils/data/dataloader.py", ("__next__", "__iter__")),
    ("torch/utils/tensorboard/writer.py", ("add_",)),
    ("/queue.py", ("put", "get")),
    ("/subprocess.py", ("run", "call", "check_", "_execute_child")),
    ("/multiprocessing/process.py", ("start",)),
    ("/threading.py", ("start",)),
    ("/wandb/", ("log", "save", "_log")),
    ("/mlflow/", ("log_",)),
    ("/comet_ml/", ("log_",)),
    ("/neptune/", ("log", "append")),
    ("/tensorboardX/", ("add_",)),
)


@contextlib.contextmanager
def supervised(state: UserState, restored: Iterable[Tensor]) -> Iterator[None]:
    """Inside, a call with an effect raises HasEffect before it is made. `restored` are tensors that may be written to:
    their owner restores them.

    A handler of the program that takes the exception does not hide it: it is raised again at the next operation of
    torch and in the end. Garbage is not collected meanwhile: finalizers of other objects are no part of these lines."""
    state.freeze()
    try:
        with calls_supervised(state) as watch, _NoForeignWrites(restored, watch):
            yield
    finally:
        state.thaw()
        state.restore()  # where a line with an effect ended the run, restoring it inside was ended too


@contextlib.contextmanager
def calls_supervised(state: UserState | StandIns) -> Iterator[EffectSupervisor]:
    """Inside, a call with an effect raises HasEffect before it is made. What is written to tensors is not looked at.
    With stand-ins for what the program holds, it may write to files: to those in memory."""
    if sys.getprofile() is not None:
        raise HasEffect("a profiler is running, so the calls cannot be supervised")
    watch = EffectSupervisor(state)
    opened, collects = builtins.open, gc.isenabled()
    gc.disable()
    if not isinstance(state, StandIns):
        builtins.open = io.open = watch.open(opened)
    sys.setprofile(watch.called)
    try:
        yield watch
        watch.check()
    finally:
        sys.setprofile(None)
        if not isinstance(state, StandIns):
            builtins.open = io.open = opened
        if collects:
            gc.enable()


class EffectSupervisor:
    """Looks at each call of this thread before it is made."""

    def __init__(self, state: UserState | StandIns) -> None:
        self._held = state if isinstance(state, StandIns) else None
        self._verdicts: dict[types.CodeType, str | None] = {}
        self._own: set[int] = set()
        self._kept: list[types.FrameType] = []
        self._iterators = isinstance(state, UserState) and state.has_iterators
        self._thread = threading.get_ident()
        self._stopped: str | None = None
        self.importing = 0

    def check(self) -> None:
        """Raise again if the run was to end already: the program's own handler took the exception, and Python takes a
        profile function off that raises."""
        if self._stopped is not None:
            sys.setprofile(self.called)
            self.stop(self._stopped)

    def stop(self, why: str) -> NoReturn:
        """End the run."""
        self._stopped = why
        raise HasEffect(why)

    def called(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """Python's profile function. An import is never ended in the middle: half a module would be left behind."""
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            self.importing += (event == "call") - (event == "return")
        if self.importing:
            return
        if event == "call":
            if code not in self._verdicts:
                self._verdicts[code] = _verdict(code)
            why = self._verdicts[code]
            if why is not None:
                self.stop(why)
            if code.co_flags & inspect.CO_GENERATOR:
                self._generator(frame)
        elif event == "c_call":
            why = self._native(frame, arg)
            if why is not None:
                self.stop(f"{why} ({frame.f_code.co_filename}:{frame.f_lineno})")

    def _generator(self, frame: types.FrameType) -> None:
        """One that was begun before this run would lose an item; one that begins now is this run's own."""
        if id(frame) in self._own or not is_users(frame.f_code.co_filename):
            return
        if _has_begun(frame):
            self.stop(f"it takes an item from the generator {frame.f_code.co_name}")
        self._own.add(id(frame))
        self._kept.append(frame)

    def _native(self, frame: types.FrameType, function: Any) -> str | None:
        """Why a function written in C must not be called, or None."""
        name = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            home = getattr(owner, "__name__", None) or getattr(function, "__module__", None) or ""
            if name == "mkdir" and _is_there(frame):
                return None
            if home in _OS and (name in _OS_WRITING or home not in ("posix", "nt")) and home != "_socket":
                return f"it calls {home}.{name}"
            if name == "next" and self._iterators and is_users(frame.f_code.co_filename):
                return "it takes an item from an iterator"
            return None
        if isinstance(owner, io.StringIO | io.BytesIO) or (isinstance(owner, io.IOBase) and is_sink(owner)):
            return None
        if isinstance(owner, io.IOBase | socket.socket) or type(owner).__module__ in _OS:
            if name in _READING and self._held is not None and is_users(frame.f_code.co_filename):
                known = self._held.knows(owner) or is_read_inside(owner)
                return None if known else f"it reads {getattr(owner, 'name', owner)!r}, which was open before"
            return f"it calls {type(owner).__name__}.{name}" if name in _WRITING or not _is_io(owner) else None
        kind = owner if isinstance(owner, type) else type(owner)
        if kind is CSV_WRITER:
            file = file_of_writer(owner)
            memory = issubclass(type(file), StandIn) or isinstance(file, io.StringIO) or is_sink(file)
            return None if memory else f"it calls csv.writer.{name}"
        home = next((each for each in kind.__mro__ if name in vars(each)), kind)  # a subclass of a tensor, of a dict
        if home.__module__.split(".")[0] in _KNOWN_KINDS or not is_users(frame.f_code.co_filename):
            return None
        return f"it calls {kind.__module__}.{kind.__name__}.{name}, whose state cannot be restored"

    def open(self, original: Any) -> Any:
        """`open` for reading only."""

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread and not self.importing and set(mode) & set("wax+"):
                self.stop(f"it opens {file!r} for writing")
            return original(file, mode, *args, **kwargs)

        return opened


def _is_there(frame: types.FrameType) -> bool:
    """Whether `os.makedirs` or `Path.mkdir` is about to make a directory that exists."""
    if frame.f_code.co_name not in ("makedirs", "mkdir") or is_users(frame.f_code.co_filename):
        return False
    path = frame.f_locals.get("name", frame.f_locals.get("self"))
    return isinstance(path, str | os.PathLike) and os.path.isdir(path)


def _is_io(owner: Any) -> bool:
    return isinstance(owner, io.IOBase) and not isinstance(owner, socket.SocketIO)


def _has_begun(frame: types.FrameType) -> bool:
    """Whether a generator's frame has run before: then it is past the instructions that all generators begin with."""
    return frame.f_lasti > 8 or frame.f_lineno != frame.f_code.co_firstlineno


def _verdict(code: types.CodeType) -> str | None:
    """Why a function of a library must not be called, or None. By its file and its name, once for each function."""
    file = code.co_filename.replace("\\", "/")
    for part, names in _NOT_CALLED:
        if part in file and code.co_name.startswith(names):
            return f"it calls {code.co_name} of {part.strip('/')}"
    return None


class _NoForeignWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writing into a tensor is allowed where the tensor was made inside, or is restored by its owner."""

    def __init__(self, restored: Iterable[Tensor], supervisor: EffectSupervisor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._supervisor = supervisor
        self._made: set[int] = set()
        self._restored = {storage for tensor in restored if (storage := _storage(tensor)) is not None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._supervisor.check()
        schema = func._schema
        if schema.is_mutable and not self._supervisor.importing:
            for place, argument in enumerate(schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    self._check(tensor, func)
        result = func(*args, **kwargs)
        if not schema.is_mutable and not _is_view(schema):
            # An address that is used again later belongs to something made inside as well.
            made = result if isinstance(result, list | tuple) else [result]
            self._made |= {storage for tensor in made if (storage := _storage(tensor)) is not None}
        return result

    def _check(self, tensor: Any, func: Any) -> None:
        if not is_tensor(tensor):
            return
        storage = _storage(tensor)
        if storage is not None and storage not in self._made and storage not in self._restored:
            self._supervisor.stop(f"{func.overloadpacket} writes into a tensor that was there before")


def _is_view(schema: Any) -> bool:
    return any(each.alias_info is not None for each in schema.returns)


def _storage(tensor: Any) -> int | None:
    """What tells a tensor's memory apart; None where it has none that could be told apart."""
    if not is_tensor(tensor) or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None
