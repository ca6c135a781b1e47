"""Numbers an evaluation left behind: `metrics.json`, a line of JSON each, or a Trainer's `trainer_state.json`.

Also the loss terms in the run's own journal, where an accuracy is often logged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..journal import files
from .watching.rows import RankRows

MAX_METRICS_BYTES = 64 << 20
OWN_FILE = "metrics.json"
Metrics = dict[str, list[float]]


def gathered(run_dir: Path, rows: RankRows | None, paths: Iterable[Path]) -> Metrics:
    """Every metric by name, its values in the order they were written. An `eval_` in front of a name is left out."""
    found: Metrics = {}
    if rows is not None:
        for name in rows.term_names:
            values = rows.term(name)
            found[name] = [float(value) for value in values[~np.isnan(values)]]
    own = run_dir / OWN_FILE
    for path in (*([own] if own.is_file() else []), *paths):
        for name, value in _numbers(_read(path)):
            found.setdefault(name, []).append(value)
            found.setdefault(name.removeprefix("eval_").removeprefix("test_"), [])
            if name.startswith(("eval_", "test_")):
                found[name.removeprefix("eval_").removeprefix("test_")].append(value)
    return found


def _read(path: Path) -> list[Any]:
    """The JSON values in a file: one, or one a line."""
    try:
        text = files.read_file(path, limit=MAX_METRICS_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {files.why(error)}.") from error
    try:
        try:
            return [json.loads(text)]
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} holds no JSON: expected an object of names and numbers, or one a line.") from error


def _numbers(values: list[Any]) -> Iterable[tuple[str, float]]:
    for value in values:
        if isinstance(value, list):
            yield from _numbers(value)
        elif isinstance(value, dict):
            if isinstance(value.get("log_history"), list):
                yield from _numbers(value["log_history"])
                continue
            for name, item in value.items():
                plain = isinstance(item, int | float) and not isinstance(item, bool)
                if plain or item in ("nan", "inf", "-inf"):  # the words are how JSON of ours holds these numbers
                    yield str(name), float(item)
