"""Patches on objects of other libraries: wrapping a method, patching a function, and undoing both."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

_UNCOUNTED = str(Path(__file__).resolve().parents[1] / "importlib_bootstrap" / "patching.py")
"""The file that the frames of a patch name. `warnings.warn(stacklevel=...)` does not count the frames of a file whose
name holds "importlib" and "_bootstrap", so a warning of torch points at the line of the program that it is meant for.
It lies inside our package, so everything that leaves our frames out leaves these out too."""


def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function or method with frames that are not counted where Python looks for the caller of a warning."""
    if isinstance(function, MethodType):
        return MethodType(uncounted(function.__func__), function.__self__)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_filename=_UNCOUNTED)
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    return copy


def outside_of_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, at which a compiled caller breaks its graph; loading dynamo where it is not used costs seconds."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return function
    disabled: Callable[..., Any] = dynamo.disable(function)
    vars(disabled).update(vars(function))
    return disabled


def wrap_method(thing: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Put `around(original, ...)` before `thing.name`; returns what undoes it.

    By a subclass and not by an attribute: schedulers write all their attributes into their state_dict.
    """
    kind = type(thing)
    original = getattr(kind, name)

    around = uncounted(around)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, self), *args, **kwargs)

    method = functools.wraps(original)(uncounted(wrapped))
    _become(thing, type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__}))

    def undo() -> None:
        _become(thing, kind)

    return undo


def _become(thing: Any, kind: type) -> None:
    """Past a class that answers for `__class__` itself, as Accelerate's data loaders do."""
    vars(object)["__class__"].__set__(thing, kind)


class Patches:
    """Functions, methods and attributes of other libraries replaced, and restored by `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, around: Callable[..., Any]) -> Any:
        """From now on `owner.name(...)` is `around(original, ...)`. A name that is not there is passed over.

        Returns the original. Given an object and not its class, others of that class are not touched.
        """
        original = getattr(owner, name, None)
        if original is None:
            return None
        own = name in vars(owner)
        around = uncounted(around)

        def patch(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        patched = functools.wraps(original)(uncounted(patch))
        setattr(owner, name, patched)

        def undo() -> None:
            # Another patch may stand over ours: then ours has to stay below it.
            if vars(owner).get(name) is patched:
                if own:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        self._undo.append(undo)
        return original

    def set(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name` is `value` until undone."""
        own, before = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    def also(self, undo: Callable[[], Any]) -> None:
        """Remember something else to undo."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Everything as it was."""
        while self._undo:
            self._undo.pop()()
