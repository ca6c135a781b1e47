"""The parts of steadygrad that can fail with an internal error, each with a stable code (`steady explain IE401`).

Such an error ends in the log and in the run directory, never in the program. `internal_errors.toml` says what each part
does and what is missing without it; it is read when something has failed.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".toml")


class InternalError(NamedTuple):
    """A part, its code, what it does, and what is missing once it has failed."""

    part: str
    code: str
    does: str
    without: str


@cache
def internal_errors() -> dict[str, InternalError]:
    """All entries by the name of their part."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["part"]
    return {row["name"]: InternalError(row["name"], row["code"], row["does"], row["without"]) for row in rows}


def code_of(part: str) -> str:
    """The code of a part; that of parts without an entry where it has none. Never raises."""
    try:
        known = internal_errors()
        return known.get(part, known["another"]).code
    except (OSError, ValueError, KeyError):
        return "IE100"
