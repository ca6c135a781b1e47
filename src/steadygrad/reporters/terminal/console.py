"""What every report on a terminal shares: one console, names made safe to print, numbers made short.

A run directory may come from a stranger, and a name in it may hold anything: an escape sequence that repaints the
screen, a character that turns the reading direction round. Whatever was read from a run goes through `shown`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
from typing import Any

from rich.console import Console
from rich.text import Text

from ...records import to_plain

LOG_WIDTH = 110
"""How wide a report is in a file or a pipe, which have no width."""


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: no markup, no highlighting, no emoji codes."""
    screen = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = LOG_WIDTH
    return screen


def shown(text: object, *, limit: int = 500) -> str:
    """`text` on one line with every control, format and private character written as an escape.

    What is longer than `limit` ends with a whole word, unless that word is most of it.
    """
    safe = "".join(_escaped(character) for character in str(text)[: limit + 1])
    if len(safe) <= limit:
        return safe
    words = safe[: limit - 2].rpartition(" ")[0]
    return (words if 2 * len(words) > limit else safe[: limit - 3]) + "..."


def shown_lines(text: str) -> str:
    """`shown` for text of several lines, which stay lines."""
    return "\n".join(shown(line, limit=2000) for line in text.splitlines())


def _escaped(character: str) -> str:
    if unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def number(value: float | None, *, digits: int = 4) -> str:
    """A number as a person reads it: nan, inf, 0.0123, 1.5e-9; "-" for none."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return f"{value:.{digits}g}"


def amount(num_bytes: float) -> str:
    """Bytes as a person reads them: 512 B, 3.2 MB, 4.0 GB."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def labelled(label: str, text: str | Text, *, width: int = 9) -> Text:
    """One line of a report: a dim label in its own column, then the text."""
    line = Text("  ")
    line.append(f"{label:<{width}}", style="dim")
    line.append(" ")
    return line.append_text(text) if isinstance(text, Text) else line.append(text)


def print_json(value: Any) -> None:
    """`value` as JSON on standard output, in ASCII, so that no terminal is moved by it; see `to_plain` for NaN."""
    json.dump(to_plain(value), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
