"""Pictures a line high: a curve as a row of bars, and norms of layers as a strip of colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from ..run_data.norm_matrix import NormMatrix, grouped
from ..terminal.console import shown

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
_RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_NOT_FINITE = Style(bgcolor=Color.from_rgb(229, 32, 44), color=Color.from_rgb(255, 255, 255))


def bars(values: Any, *, width: int, utf: bool = True, base: float | None = None) -> str:
    """A row of bars on a log scale (a plain one if a value is not above zero): each stands for the mean of a stretch.

    With `base` the scale is plain and begins there. "x" where no value of a stretch is finite.
    """
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    if not len(values) or width < 1:
        return ""
    if base is None and finite.any() and (values[finite] > 0).all():
        values = np.log(np.where(finite, values, 1.0))
    stretches = np.array_split(np.arange(len(values)), min(width, len(values)))
    means = [values[place][finite[place]].mean() if finite[place].any() else np.nan for place in stretches]
    known = [mean for mean in means if np.isfinite(mean)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low = low if base is None else base
    marks = BARS if utf else PLAIN_BARS
    span = (high - low) or 1.0
    return "".join(
        "x" if not np.isfinite(mean) else marks[round((mean - low) / span * (len(marks) - 1))] for mean in means
    )


def heat_lines(heat: NormMatrix, *, rows: int, width: int, label: int = 24) -> list[Text]:
    """The norms of at most `rows` groups of layers over the run, one line each; red where one is not finite."""
    names, steps, matrix = heat.table()
    if not len(steps) or rows < 1 or width < label + 8:
        return []
    names, matrix = _merged(names, matrix, rows)
    label = min(label, 2 + max(len(name) for name in names))
    columns = min(width - label - 1, len(steps))
    stretches = np.array_split(np.arange(len(steps)), columns)
    with np.errstate(invalid="ignore"):
        table = np.stack([matrix[:, place].max(axis=1) for place in stretches], axis=1)
    positive = table[np.isfinite(table) & (table > 0)]
    low, high = (float(np.log10(positive.min())), float(np.log10(positive.max()))) if len(positive) else (0.0, 1.0)
    low = max(low, high - 6.0)
    repeat = max(1, (width - label - 1) // columns)
    lines = []
    for name, row in zip(names, table, strict=True):
        line = Text(no_wrap=True)
        told = shown(name, limit=200)
        told = told if len(told) < label else "…" + told[-(label - 2) :]
        line.append(f"{told:>{label - 1}} ", style="dim")
        for value in row:
            line.append(("!" if not np.isfinite(value) else " ") * repeat, style=_style(float(value), low, high))
        lines.append(line)
    return lines


def _merged(names: list[str], matrix: Any, rows: int) -> tuple[list[str], Any]:
    """Neighbours put together until there are `rows`: by the beginning of their names first, then simply in order."""
    names, matrix = grouped(names, matrix, limit=max(rows, 64))
    coarse = grouped(names, matrix, limit=rows)
    if len(coarse[0]) * 2 > min(rows, len(names)):
        return coarse
    parts = np.array_split(np.arange(len(names)), min(rows, len(names)))
    with np.errstate(invalid="ignore"):
        merged = np.stack([matrix[part].max(axis=0) for part in parts])
    labels = [names[part[0]] + (f" - {names[part[-1]].rpartition('.')[2]}" if len(part) > 1 else "") for part in parts]
    return labels, merged


def _style(value: float, low: float, high: float) -> Style:
    if not np.isfinite(value):
        return _NOT_FINITE
    if value <= 0:
        return Style()
    share = min(1.0, max(0.0, (float(np.log10(value)) - low) / ((high - low) or 1.0))) * (len(_RAMP) - 1)
    at = min(int(share), len(_RAMP) - 2)
    part = share - at
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(_RAMP[at], _RAMP[at + 1], strict=True))
    return Style(bgcolor=Color.from_rgb(red, green, blue))
