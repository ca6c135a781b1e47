"""Numbers with the words they belong to, as a person says them: 1 step is, 2 steps are, line 6, lines 6 to 9."""

from __future__ import annotations

from typing import Any


def counted(number: int, word: str, many: str | None = None) -> str:
    """1 step, 2,000 steps, 2 batches: `many` where an s at the end is not enough."""
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def are(number: int) -> str:
    """1 is, 2 are."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """1 was, 2 were."""
    return "was" if number == 1 else "were"


def ran_again(lines: Any) -> str:
    """Line 6 of train.py was run again; lines 6 to 9 of train.py were run again."""
    first, last = lines.first_line, lines.last_line
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    return f"{where} of {lines.filename} {'was' if first == last else 'were'} run again"
