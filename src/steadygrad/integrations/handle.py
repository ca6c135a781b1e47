"""What every entry point returns: one handle with the same few names, whoever owns the loop."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from ..records import Incident


@runtime_checkable
class GuardHandle(Protocol):
    """A guard, as `sg.Guard(...)` and `sg.attach(...)` return it. It is a context manager that closes it.

    Args:
        none: it is a protocol, and `sg.Guard` and `sg.attach` return an object that follows it.

    Returns:
        `incidents` is a list of Incident, `summary()` a dictionary of counts; `settle()` and `close()` return nothing.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> with sg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model=model) as guard:
        ...     isinstance(guard, sg.GuardHandle), guard.incidents
        (True, [])
    """

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
