"""Listening to other people's objects: wrapping a method, patching a function, and undoing both."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


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

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, self), *args, **kwargs)

    _become(
        thing, type(kind.__name__, (kind,), {name: functools.wraps(original)(wrapped), "__module__": kind.__module__})
    )

    def undo() -> None:
        _become(thing, kind)

    return undo


def _become(thing: Any, kind: type) -> None:
    """Past a class that answers for `__class__` itself, as Accelerate's data loaders do."""
    vars(object)["__class__"].__set__(thing, kind)


class Patches:
    """Functions, methods and attributes of other people's modules, classes and objects put aside, and back again."""

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

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, patched)

        def undo() -> None:
            # Somebody may have put a patch of their own over ours: then ours has to stay below it.
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
