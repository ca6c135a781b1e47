"""Patches on objects of other libraries: wrapping a method, patching a function, and undoing both.

Every patch is a fault barrier: whatever fails in our function, the original is called exactly once, with the arguments
that the program gave it, and what it raises or returns reaches the program untouched.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from ...detect.tensors.foreign_objects import getattr, isinstance
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

    By a subclass and not by an attribute: schedulers write all their attributes into their state_dict. A copy of the
    object, and what is pickled of it, is of the class that it had.
    """
    kind = type(thing)
    original = getattr(kind, name)

    around = barred(around, failed, may)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, self), *args, **kwargs)

    method = functools.wraps(original)(uncounted(wrapped))
    own = {"__module__": kind.__module__, "__reduce_ex__": _reduce, "_wrapped_class": _unwrapped(kind)}
    _become(thing, type(kind.__name__, (kind,), {name: method, **own}))

    def undo() -> None:
        _become(thing, kind)

    return undo


def wrap_on_object(thing: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """From now on `thing.name(...)` is `around(original, ...)`; returns what undoes it.

    On the object, as a method: a schedule that is made later wraps an optimizer's `step` again by its `__func__`.
    """
    before = vars(thing).get(name)
    original = getattr(thing, name)

    @functools.wraps(original)
    def wrapped(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    ours = MethodType(outside_of_compile(wrapped), thing)
    vars(thing)[name] = ours

    def undo() -> None:
        if vars(thing).get(name) is ours:
            if before is None:
                del vars(thing)[name]
            else:
                vars(thing)[name] = before

    return undo


def _unwrapped(kind: type) -> type:
    found: type = getattr(kind, "_wrapped_class", kind)
    return found


def _reduce(self: Any, protocol: Any) -> Any:
    """What `copy` and `pickle` ask for, as if nothing were wrapped."""
    ours, theirs = type(self), _unwrapped(type(self))
    answer: Any = theirs.__reduce_ex__(self, protocol)  # type: ignore[call-arg]
    if not isinstance(answer, tuple):
        return answer
    make, given, *rest = answer
    if given == (ours,):  # pickle allows no other class there, but in the older form
        return (copyreg._reconstructor, (theirs, object, None), *rest)  # type: ignore[attr-defined]
    return (theirs if make is ours else make, given, *rest)


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
