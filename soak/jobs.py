"""One regime as a task of a pool of processes: those find it by the name of this module."""

from __future__ import annotations

from pathlib import Path

Task = tuple[str, int, list[str], int, Path]


def work(task: Task) -> str:
    """One regime with one seed; its results are written as they come."""
    from .results import append
    from .runner import soak

    name, seed, entry_points, steps, path = task
    found = []
    for result in soak(name, seed, entry_points, steps):
        append(path, result)
        found.append(f"{result.entry_point} {result.status}")
    return f"{name}, seed {seed}: {', '.join(found)}"
