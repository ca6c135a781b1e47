"""Methods of one object wrapped for a while, and all of it undone at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Wraps methods on instances, never on classes: another trainer in the same process is not touched."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, thing: Any, name: str, around: Callable[..., Any]) -> Callable[..., Any]:
        """`thing.name(...)` becomes `around(original, ...)`. Returns the original."""
        before = vars(thing).get(name, _ABSENT)
        original: Callable[..., Any] = getattr(thing, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(thing, name, wrapped)

        def undo() -> None:
            # Somebody may have wrapped it again since; taking ours out from under theirs would undo theirs.
            if vars(thing).get(name) is wrapped:
                _put(thing, name, before)

        self._undo.append(undo)
        return original

    def set(self, thing: Any, name: str, value: Any) -> None:
        """`thing.name` is `value` until undone."""
        before = vars(thing).get(name, _ABSENT)
        setattr(thing, name, value)
        self._undo.append(lambda: _put(thing, name, before))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _put(thing: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        vars(thing).pop(name, None)
    else:
        setattr(thing, name, before)
