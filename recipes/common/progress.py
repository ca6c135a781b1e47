"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Tick = Callable[[int, str], None]


@contextmanager
def progress_bar(name: str, total: int, *, show: bool) -> Iterator[Tick]:
    """Hands out `tick(step, words)`; words stay beside the bar until there are others."""
    console = Console(stderr=True)
    if not (show and console.is_terminal):

        def say(step: int, words: str) -> None:
            if words and show:
                console.print(f"{name}: step {step}  {words}", highlight=False)

        yield say
        return
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)

        def advance(step: int, words: str) -> None:
            progress.update(task, completed=step, **({"description": words} if words else {}))

        yield advance
