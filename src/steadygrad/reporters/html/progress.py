"""A progress bar on standard error while a long journal is read; nothing in a pipe, nothing for a short one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..terminal.console import console, shown

LONG_BYTES = 4 << 20


@contextmanager
def reading(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Yields `progress(run, bytes_done, bytes_total)`."""
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda run, done, total: None
        return
    from rich.progress import Progress

    bars = Progress(console=screen, transient=True)
    tasks: dict[str, object] = {}

    def progress(run: str, done: int, total: int) -> None:
        if total < LONG_BYTES:
            return
        if run not in tasks:
            tasks[run] = bars.add_task(f"reading {shown(run, limit=40)}", total=total)
        bars.update(tasks[run], completed=done)  # type: ignore[arg-type]

    with bars:
        yield progress
