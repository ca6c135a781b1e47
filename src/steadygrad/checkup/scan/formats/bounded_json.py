"""JSON from a stranger. How many values a text can hold is counted before any of them is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..unreadable import Unreadable


def parse_json(
    path: Path, text: bytes, *, max_values: int, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, and Unreadable where it holds too many values."""
    if sum(text.count(mark) for mark in b",[{") > max_values:
        raise Unreadable(f"{path} holds JSON of more than {max_values:,} values: more than any checkpoint needs.")
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
