"""The fault barrier: an internal error never stops training, and an error of the program's own is never swallowed.

Three forms, one for each way in which our code and the program's meet:
- `@boundary` on a method that the program or its framework calls, and `listener` around a hook;
- `integrations.loops.patching` around a function of the program that ours stands before: it is called exactly once;
- `with theirs():` where our code calls the program's, so that what it raises is not taken for a fault of ours.
Inside, `with barrier("part", fallback)` lets one part fail without the rest.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, overload

from ..records.errors import SteadyError, code_of

logger = logging.getLogger("steadygrad")
T = TypeVar("T")
_NONE = object()


class UserCodeError(Exception):
    """Carries an exception raised by the user's code (loss_fn, model, optimizer, scheduler) through ours."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(str(original))
        self.original = original


class user_code:  # reads as a word at the call: `with theirs():`
    """Around a call into the user's code. A class, because a generator costs more, several times a step."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if isinstance(error, Exception):
            raise UserCodeError(error) from error


def raise_again(error: BaseException) -> NoReturn:
    """Raise what the program's code raised, with the cause and the context that it had."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def boundary(method: Callable[..., T]) -> Callable[..., T | None]:
    """A method that the program calls: what breaks in it goes to the object's `failed(fault)`, and None is returned.

    What the program's own code raises passes through, and so does what we raise on purpose.
    """

    @functools.wraps(method)
    def safe(self: Any, *args: Any, **kwargs: Any) -> T | None:
        try:
            return method(self, *args, **kwargs)
        except UserCodeError as fault:
            raise_again(fault.original)
        except SteadyError:
            raise
        except Exception as fault:
            self.failed(fault)
            return None

    return safe


def listener(hook: Callable[..., Any], failed: Callable[[Exception], Any]) -> Callable[..., Any]:
    """A hook of ours on an object of the program: what breaks in it goes to `failed`, and the program goes on."""

    @functools.wraps(hook)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except SteadyError:
            raise
        except Exception as fault:
            failed(fault)
            return None

    return safe


class BarrierBlock(Generic[T]):
    """One shielded block, and what it came up with: its `value`, which is the fallback if it broke. A class, because a
    generator costs more, several times a step."""

    __slots__ = ("_barrier", "_fallback", "_room", "value")

    def __init__(self, barrier: FaultBarrier, room: str, fallback: T) -> None:
        self._barrier = barrier
        self._room = room
        self._fallback = self.value = fallback

    def __enter__(self) -> BarrierBlock[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, tb: object) -> bool:
        if fault is None or isinstance(fault, SteadyError) or not isinstance(fault, Exception):
            return False
        self.value = self._fallback
        self._barrier.note(self._room, fault)
        return True


class BarrierPart:
    """A shielded block of every step's path: made once, and it comes up with nothing."""

    __slots__ = ("_barrier", "_room")

    def __init__(self, barrier: FaultBarrier, room: str) -> None:
        self._barrier, self._room = barrier, room

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, tb: object) -> bool:
        if fault is None or isinstance(fault, SteadyError) or not isinstance(fault, Exception):
            return False
        self._barrier.note(self._room, fault)
        return True


class FaultBarrier:
    """Catches what breaks inside a component, tells once, counts, and lets the loop go on."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self._tell: Callable[..., Any] | None = None

    def report_to(self, tell: Callable[..., Any]) -> None:
        """`tell(kind, **data)` is called for each fault, usually the journal's `event`."""
        self._tell = tell

    @overload
    def __call__(self, room: str) -> BarrierPart: ...

    @overload
    def __call__(self, room: str, fallback: T) -> BarrierBlock[T]: ...

    def __call__(self, room: str, fallback: Any = _NONE) -> BarrierPart | BarrierBlock[Any]:
        """Around a call into a component: `with barrier("watch", fallback) as answer: answer.value = ...`. Without a
        fallback what comes back can be used again and again."""
        return BarrierPart(self, room) if fallback is _NONE else BarrierBlock(self, room, fallback)

    def note(self, room: str, fault: BaseException) -> None:
        """Record a fault of ours; loud the first time for each component."""
        count = self.faults[room] = self.faults.get(room, 0) + 1
        if count == 1:
            with contextlib.suppress(Exception):  # out of a handler of the program's own
                logger.error(
                    "internal error of steadygrad %s in %s (%s: %s); training goes on without that part",
                    code_of(room), room, type(fault).__name__, (str(fault).splitlines() or [""])[0][:200],
                )  # fmt: skip
                logger.debug("internal error of steadygrad in %s", room, exc_info=fault)
        if self._tell is not None and count <= 20:
            try:
                text = "".join(traceback.format_exception_only(fault)).strip()
                self._tell("guard_fault", code=code_of(room), room=room, fault=text)
            except Exception:
                # The journal is what broke; the log line above is all there can be.
                self._tell = None
