"""Two small pictures as SVG, for which no library is needed: bars before and after, and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 320, 70, 40, 40
COLOURS = ("#9aa5b1", "#1f77b4", "#2a9d5c", "#c8553d")


def bars(path: Path, title: str, values: Mapping[str, Mapping[str, float]]) -> None:
    """A group of bars for each name, one bar for each of its numbers, all between 0 and 1."""
    groups = list(values)
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    room = (WIDTH - LEFT - 20) / max(1, len(groups))
    width = room * 0.8 / max(1, len(series))
    body = _axis([0.0, 0.25, 0.5, 0.75, 1.0], lambda value: value)
    for place, group in enumerate(groups):
        start = LEFT + room * (place + 0.1)
        for number, name in enumerate(series):
            value = min(1.0, max(0.0, values[group].get(name, 0.0)))
            top, x = _y(value), start + width * number
            body.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{width * 0.9:.1f}" height="{_y(0) - top:.1f}" '
                f'fill="{COLOURS[number % len(COLOURS)]}"/>'
            )
            body.append(_text(x + width * 0.45, top - 5, f"{value:.2f}"))
        body.append(_text(start + room * 0.4, HEIGHT - BOTTOM + 18, group))
    _write(path, title, body, series)


def lines(path: Path, title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, log: bool = True) -> None:
    """Curves over steps. Points that are not finite are left out, and on a logarithmic axis those not above zero."""
    good = {
        name: [(x, math.log10(y) if log else y) for x, y in points if math.isfinite(y) and (y > 0 or not log)]
        for name, points in curves.items()
    }
    every = [point for points in good.values() for point in points] or [(0.0, 0.0)]
    (x0, x1), (y0, y1) = ((min(side), max(side)) for side in zip(*every, strict=True))
    spread = (y1 - y0) or 1.0
    body = _axis([y0 + spread * part / 4 for part in range(5)], lambda value: (value - y0) / spread, power=log)
    for number, points in enumerate(good.values()):
        path_of = " ".join(
            f"{LEFT + (x - x0) / ((x1 - x0) or 1.0) * (WIDTH - LEFT - 20):.1f},{_y((y - y0) / spread):.1f}"
            for x, y in points
        )
        colour = COLOURS[(number + 1) % len(COLOURS)]
        body.append(f'<polyline points="{path_of}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) == 1:  # a line of one point is not seen
            x, y = path_of.split(",")
            body.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
    body.append(_text(LEFT, HEIGHT - BOTTOM + 18, f"step {x0:g}"))
    body.append(_text(WIDTH - 40, HEIGHT - BOTTOM + 18, f"step {x1:g}"))
    _write(path, title, body, list(good), first_colour=1)


def _y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis(marks: Sequence[float], share_of: object, *, power: bool = False) -> list[str]:
    found = []
    for mark in marks:
        height = _y(share_of(mark))  # type: ignore[operator]
        found.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>')
        found.append(_text(LEFT - 8, height + 4, f"{10**mark if power else mark:.3g}", "end"))
    return found


def _write(path: Path, title: str, body: list[str], names: Sequence[str], *, first_colour: int = 0) -> None:
    legend = []
    for number, name in enumerate(names):
        x = LEFT + 150 * number
        colour = COLOURS[(number + first_colour) % len(COLOURS)]
        legend.append(
            f'<rect x="{x}" y="24" width="10" height="10" fill="{colour}"/>' + _text(x + 15, 33, name, "start")
        )
    inside = "\n".join([_text(LEFT, 16, title, "start"), *legend, *body])
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{inside}\n</svg>\n',
        encoding="utf-8",
    )
