"""Law 7: the guard's own failure does not fail training. Each room is called through a shield."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import SteadyError

logger = logging.getLogger("steadygrad")
T = TypeVar("T")


@dataclass(slots=True)
class Answer(Generic[T]):
    """What the shielded block came up with; what it began with if the block broke."""

    value: T


class Shielded(Generic[T]):
    """One shielded block. A class, because a generator costs more, several times a step."""

    __slots__ = ("_answer", "_fallback", "_room", "_shield")

    def __init__(self, shield: Shield, room: str, fallback: T) -> None:
        self._shield = shield
        self._room = room
        self._fallback = fallback
        self._answer = Answer(fallback)

    def __enter__(self) -> Answer[T]:
        return self._answer

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, tb: object) -> bool:
        if fault is None or isinstance(fault, SteadyError) or not isinstance(fault, Exception):
            return False
        self._answer.value = self._fallback
        self._shield.note(self._room, fault)
        return True


class Shield:
    """Catches what breaks inside a room, tells once, counts, and lets the loop go on."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self._tell: Callable[..., Any] | None = None

    def report_to(self, tell: Callable[..., Any]) -> None:
        """`tell(kind, **data)` is called for each fault, usually the journal's `event`."""
        self._tell = tell

    def __call__(self, room: str, fallback: T) -> Shielded[T]:
        """Around a call into a room: `with shield("watch", fallback) as answer: answer.value = ...`."""
        return Shielded(self, room, fallback)

    def note(self, room: str, fault: BaseException) -> None:
        """Record a fault of ours; loud the first time for each room."""
        count = self.faults[room] = self.faults.get(room, 0) + 1
        if count == 1:
            logger.error(
                "internal error of steadygrad in %s (%s: %s); training goes on without that part",
                room, type(fault).__name__, (str(fault).splitlines() or [""])[0][:200],
            )  # fmt: skip
            logger.debug("internal error of steadygrad in %s", room, exc_info=fault)
        if self._tell is not None and count <= 20:
            try:
                self._tell("guard_fault", room=room, fault="".join(traceback.format_exception_only(fault)).strip())
            except Exception:
                # The journal is the room that broke; the log line above is all there can be.
                self._tell = None
