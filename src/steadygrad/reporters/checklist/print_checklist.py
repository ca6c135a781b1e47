"""The checklist for after training on the terminal, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...records import to_plain
from ..run_data.run_summary import RunSummary
from ..terminal.console import shown
from .checks import Check, Mark

_STYLES = {Mark.PASS: "green", Mark.FAIL: "bold red", Mark.OPEN: "yellow"}


def print_checklist(console: Console, story: RunSummary, checks: Sequence[Check]) -> None:
    """One line a question, and one for all of them."""
    console.print(Text(f"{shown(story.name)}: {shown(story.headline)}"), soft_wrap=True)
    width = max((len(check.question) for check in checks), default=0)
    left = max((len(check.mark) for check in checks), default=0) + 1
    for check in checks:
        line = Text(f"  {check.mark:<{left}}", style=_STYLES[check.mark])
        line.append(f" {shown(check.question):<{width}}  ", style="")
        line.append(shown(check.detail), style="dim")
        console.print(line, soft_wrap=True)
    console.print(Text(summary(checks)), soft_wrap=True)


def summary(checks: Sequence[Check]) -> str:
    """For example "8 passed, 1 failed, 2 not checked"."""
    count = {mark: sum(check.mark is mark for check in checks) for mark in Mark}
    words = [f"{count[Mark.PASS]} passed", f"{count[Mark.FAIL]} failed"]
    if count[Mark.OPEN]:
        words.append(f"{count[Mark.OPEN]} not checked")
    return ", ".join(words)


def failed(checks: Sequence[Check]) -> bool:
    """Whether a line failed, or one that was asked for by name was not checked."""
    return any(check.mark is Mark.FAIL or (check.asked and check.mark is Mark.OPEN) for check in checks)


def as_data(run: str, checks: Sequence[Check]) -> dict[str, Any]:
    """The checklist for programs."""
    return {"run": run, "passed": not failed(checks), "checks": to_plain(list(checks))}
