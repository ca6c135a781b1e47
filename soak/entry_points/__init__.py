"""The ways into the guard, by the name that `--entry-points` takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from ..observed import Observed
from ..state import State
from ..training import Training

NAMES = ("guard", "attach", "run", "trainer", "lightning", "accelerate")
PLAIN = "plain"
"""Not an entry point: the regime without a guard, to see that it is healthy."""


class EntryPoint(Protocol):
    """A module of this package."""

    BASELINE: str
    """Whose plain run it is compared with: "loop", or the framework's name."""

    def why_not(self, training: Training) -> str | None:
        """Why this entry point cannot express a training, or None."""
        ...

    def plain(self, build: Callable[[], Training], steps: int) -> State:
        """The end state of the same training without a guard."""
        ...

    def guarded(self, build: Callable[[], Training], steps: int) -> Observed:
        """The training under a guard with default settings."""
        ...


def entry_point(name: str) -> EntryPoint:
    """Imported when first used: some need a framework that takes seconds to import."""
    if name not in NAMES:
        raise ValueError(f"There is no entry point {name!r}. Known: {', '.join(NAMES)}.")
    return import_module(f"{__name__}.{name}_entry")  # type: ignore[return-value]
