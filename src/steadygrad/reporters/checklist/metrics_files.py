"""Numbers an evaluation left behind: `metrics.json`, `result.json`, a line of JSON each, or a `trainer_state.json`.

Also the loss terms in the run's own journal, where an accuracy is often logged. In nested JSON a number goes by its own
name and by its path, a list of numbers or of [step, number] is a series: {"scores": {"after": {"accuracy": 0.4}}} has
`accuracy` and `scores.after.accuracy`, and of a before and an after the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...journal import safe_files
from ...records.errors import UsageError
from ..run_data.step_columns import RankColumns

MAX_METRICS_BYTES = 64 << 20
OWN_FILES = ("result.json", "metrics.json")
MAX_DEPTH = 8
Metrics = dict[str, list[float]]


def gathered(folders: Iterable[Path], rows: RankColumns | None, paths: Iterable[Path]) -> Metrics:
    """Every metric by name, its values in the order they were written. An `eval_` in front of a name is left out."""
    found: Metrics = {}
    if rows is not None:
        for name in rows.term_names:
            values = rows.final_term(name)
            found[name] = [float(value) for value in values[~np.isnan(values)]]
    own = [folder / name for folder in folders for name in OWN_FILES if (folder / name).is_file()]
    for path in (*own, *paths):
        for name, value in _numbers(_read(path)):
            short = name.rpartition(".")[2]
            for known in dict.fromkeys((name, short, short.removeprefix("eval_").removeprefix("test_"))):
                found.setdefault(known, []).append(value)
    return found


def _read(path: Path) -> list[Any]:
    """The JSON values in a file: one, or one a line."""
    try:
        text = safe_files.read_file(path, limit=MAX_METRICS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {safe_files.why(error)}.") from error
    try:
        try:
            return [json.loads(text)]
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} holds no JSON: expected an object of names and numbers, or one a line.") from error


def _numbers(values: list[Any]) -> Iterable[tuple[str, float]]:
    """The numbers in what one file holds, each with its path."""
    for value in values:
        if isinstance(value, list):
            yield from _numbers(value)
        elif isinstance(value, dict):
            history = value.get("log_history")
            yield from _numbers(history) if isinstance(history, list) else _nested("", value, MAX_DEPTH)


def _nested(path: str, value: Any, depth: int) -> Iterable[tuple[str, float]]:
    if isinstance(value, dict) and depth:
        for name, item in value.items():
            yield from _nested(f"{path}.{name}" if path else str(name), item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            point = item[1] if isinstance(item, list) and len(item) == 2 else item
            if _is_number(point):
                yield path, float(point)
    elif _is_number(value):
        yield path, float(value)


def _is_number(value: Any) -> bool:
    """The words are how JSON of ours holds numbers that are not finite."""
    if isinstance(value, str):
        return value in ("nan", "inf", "-inf")
    return isinstance(value, int | float) and not isinstance(value, bool)
