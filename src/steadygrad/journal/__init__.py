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
    from .incident_files import read_incidents as read_incidents
    from .journal import Journal as Journal
    from .run_directory import read_run as read_run
    from .steps.step_reader import read_batches as read_batches
    from .steps.step_reader import read_steps as read_steps
    from .steps.step_reader import steps_table as steps_table
    from .steps.step_reader import tensor_names as tensor_names

_HOME = {
    "Event": "events",
    "Journal": "journal",
    "Quarantined": "events",
    "read_batches": "steps.step_reader",
    "read_events": "events",
    "read_incidents": "incident_files",
    "read_quarantine": "events",
    "read_run": "run_directory",
    "read_steps": "steps.step_reader",
    "steps_table": "steps.step_reader",
    "tensor_names": "steps.step_reader",
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
