"""The order of names with numbers in them: step-2000 before step-10000."""

from __future__ import annotations

import re

_PARTS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts numbers in a name by their value and the rest as text."""
    return tuple(
        (True, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (False, 0, part)
        for part in _PARTS.split(name)
        if part
    )
