"""What every entry point returns: one handle with the same few names, whoever owns the loop."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from .records import Incident


@runtime_checkable
class GuardHandle(Protocol):
    """A guard, as `sg.Guard(...)` and `sg.attach(...)` return it. It is a context manager that closes it."""

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""

    def summary(self) -> dict[str, Any]:
        """The counts of the run so far, and what is in force."""

    def settle(self) -> None:
        """Settle a step that is judged late; does nothing where every step is judged at once."""

    def close(self) -> None:
        """Leave the loop as it was and close the journal. Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
