"""Patches on objects of other libraries: wrapping a method, patching a function, and undoing both.

Every patch is a fault barrier: whatever fails in our function, the original is called exactly once, with the arguments
that the program gave it, and what it raises or returns reaches the program untouched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from .patch_barrier import Failed, barred, undo_all
from .patch_barrier import uncounted as uncounted


def outside_of_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, at which a compiled caller breaks its graph; loading dynamo where it is not used costs seconds."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return function
    disabled: Callable[..., Any] = dynamo.disable(function)
    vars(disabled).update(vars(function))
    return disabled


def wrap_method(
    thing: Any, name: str, around: Callable[..., Any], failed: Failed | None = None,
    may: Callable[..., bool] | None = None,
) -> Callable[[], None]:  # fmt: skip
    """Put `around(original, ...)` before `thing.name`; returns what undoes it. `failed` and `may`: see `barred`.

    By a subclass and not by an attribute: schedulers write all their attributes into their state_dict.
    """
    kind = type(thing)
    original = getattr(kind, name)

    around = barred(around, failed, may)

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

    def __init__(self, failed: Failed | None = None) -> None:
        self._undo: list[Callable[[], None]] = []
        self._failed = failed

    def around(
        self, owner: Any, name: str, around: Callable[..., Any], may: Callable[..., bool] | None = None, *,
        listed: bool = False,
    ) -> Any:  # fmt: skip
        """From now on `owner.name(...)` is `around(original, ...)`. A name that is not there is passed over.

        `may` and `listed`: see `barred`.

        Returns the original. Given an object and not its class, others of that class are not touched.
        """
        original = getattr(owner, name, None)
        if original is None:
            return None
        own = name in vars(owner)
        around = barred(around, self._failed, may, listed=listed)

        def patch(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        # A method stays one: a schedule that is made later wraps an optimizer's step by its `__func__`.
        bound = isinstance(original, MethodType) and original.__self__ is owner
        wrapped = functools.wraps(original)(uncounted(method if bound else patch))
        patched = MethodType(wrapped, owner) if bound else wrapped
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
        undo_all(self._undo, self._failed)
