"""What every tracker can do."""

from __future__ import annotations

from typing import Protocol

PROJECT = "steadygrad"


class Tracker(Protocol):
    """A place that keeps numbers by step. `place` says in words where they went."""

    place: str

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        """Keep these numbers of one step. They may be NaN or infinite, for that is what they were."""

    def words(self, step: int, time: float, title: str, text: str) -> None:
        """Keep a text that belongs to one step, in plain words or Markdown."""

    def close(self) -> None:
        """Hand over what is left."""
