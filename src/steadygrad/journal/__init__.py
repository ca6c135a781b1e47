"""What a run remembers: steps, incidents, events, quarantine, and what is needed to resume. Imports no torch.

Names are resolved when they are first used: whoever reads incidents or events should not wait for pyarrow, which only
the steps need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import Event as Event
    from .events import Quarantined as Quarantined
    from .events import read_events as read_events
    from .events import read_quarantine as read_quarantine
    from .incidents import read_incidents as read_incidents
    from .journal import Journal as Journal
    from .read import read_batches as read_batches
    from .read import read_steps as read_steps
    from .read import steps_table as steps_table
    from .read import tensor_names as tensor_names
    from .run_directory import read_run as read_run

_HOME = {
    "Event": "events",
    "Journal": "journal",
    "Quarantined": "events",
    "read_batches": "read",
    "read_events": "events",
    "read_incidents": "incidents",
    "read_quarantine": "events",
    "read_run": "run_directory",
    "read_steps": "read",
    "steps_table": "read",
    "tensor_names": "read",
}


__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
