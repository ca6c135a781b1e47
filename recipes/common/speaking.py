"""What every recipe says in the same way: three lines of help for a bare name, and log lines that fit a terminal."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = 100


def helped(arguments: Sequence[str] | None, name: str, what: str, quick: str, verbs: str) -> bool:
    """Whether the recipe was called by its bare name; then how to call it is printed, in three lines."""
    if sys.argv[1:] if arguments is None else arguments:
        return False
    print(f"recipes.{name}: {what}")
    print(f"  try it:  python -m recipes.{name} {quick}    about three minutes on two idle cores")
    print(f"  more:    {verbs}; train --sick fails on purpose; --out FOLDER; --help")
    return True


class _Short(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shortened(record.getMessage())


def shortened(text: str) -> str:
    """The text in one line of at most 100 columns."""
    text = " ".join(text.split())
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 4].rsplit(' ', 1)[0]} ..."


def short_log_lines() -> None:
    """Print what the guard logs in lines of at most 100 columns; `steady incidents` has the whole of it."""
    logger = logging.getLogger("steadygrad")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(_Short())
        logger.addHandler(handler)


def put_aside(folder: Path, mark: str) -> Path | None:
    """Rename what an earlier run has left, so that two runs are not one: `tiny` becomes `tiny-1`, or the next free.

    `mark` is a file that only a run leaves: a folder without it is not ours, and is left alone."""
    if not (folder / mark).exists():
        return None
    number = next(n for n in itertools.count(1) if not folder.with_name(f"{folder.name}-{n}").exists())
    aside = folder.rename(folder.with_name(f"{folder.name}-{number}"))
    print(f"the run that was in {folder} is now in {aside}", file=sys.stderr)
    return aside
