"""Two pictures as SVG, drawn by the code of `steady plot`: bars before and after, and curves over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from steadygrad.reporters.pictures.plot_file import svg
from steadygrad.reporters.pictures.plot_scene import DIM, GRID, HEIGHT, INK, PAPER, WIDTH
from steadygrad.reporters.pictures.plot_shapes import Area, AxisScale, Line, PlotText, Shape, scale_for, short

LEFT, RIGHT, TOP, BOTTOM = 100.0, WIDTH - 40.0, 110.0, HEIGHT - 70.0
COLOURS = ("#9aa5b1", "#1f77b4", "#2a9d5c", "#c8553d")
SIZE = 20


def bars(path: Path, title: str, values: Mapping[str, Mapping[str, float]]) -> None:
    """A group of bars for each name, one bar for each of its numbers, all between 0 and 1."""
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    y = AxisScale(0.0, 1.0, BOTTOM, TOP)
    share = (RIGHT - LEFT) / max(1, len(values))
    width = share * 0.8 / max(1, len(series))
    shapes = [*_frame(title, dict(zip(series, COLOURS, strict=False)), y)]
    for place, (group, numbers) in enumerate(values.items()):
        start = LEFT + share * (place + 0.1)
        for number, name in enumerate(series):
            value = numbers.get(name, 0.0)
            left, top = start + width * number, y.at(value)
            shapes.append(Area(points=_rectangle(left, top, left + width * 0.9, BOTTOM), colour=COLOURS[number % 4]))
            shapes.append(_words(left + width * 0.45, top - 8, f"{value:.2f}"))
        shapes.append(_words(start + share * 0.4, BOTTOM + 30, group))
    path.write_text(svg(shapes), encoding="utf-8")


def lines(path: Path, title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, log: bool = True) -> None:
    """Curves over steps. Points that are not finite are left out, and on a logarithmic axis those not above zero."""
    good = {
        name: [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log)] for name, points in curves.items()
    }
    every = [point for points in good.values() for point in points]
    steps = [step for step, _ in every] or [0.0]
    x = AxisScale(min(steps), max(steps), LEFT, RIGHT) if min(steps) < max(steps) else _around(steps[0])
    y = scale_for([value for _, value in every], BOTTOM, TOP, log=log)
    colours = {name: COLOURS[(number + 1) % len(COLOURS)] for number, name in enumerate(good)}
    shapes = [*_frame(f"{title}, log scale" if log else title, colours, y), *_steps(x)]
    for name, points in good.items():
        places = [(x.at(step), y.at(value)) for step, value in points]
        if len(places) == 1:  # a line of one point is not seen
            (across, up), colour = places[0], colours[name]
            shapes.append(Area(points=_rectangle(across - 6, up - 6, across + 6, up + 6), colour=colour))
        elif places:
            shapes.append(Line(points=places, colour=colours[name], width=3))
    path.write_text(svg(shapes), encoding="utf-8")


def _around(step: float) -> AxisScale:
    return AxisScale(step - 1, step + 1, LEFT, RIGHT)


def _rectangle(left: float, top: float, right: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _words(x: float, y: float, text: str, anchor: str = "middle", colour: str = INK) -> PlotText:
    return PlotText(x=x, y=y, text=text, colour=colour, size=SIZE, anchor=anchor)


def _frame(title: str, colours: Mapping[str, str], y: AxisScale) -> Iterator[Shape]:
    yield Area(points=_rectangle(0, 0, WIDTH, HEIGHT), colour=PAPER)
    yield _words(LEFT, 36, title, "start")
    for number, (name, colour) in enumerate(colours.items()):
        left = LEFT + 270 * number
        yield Area(points=_rectangle(left, 58, left + 16, 74), colour=colour)
        yield _words(left + 24, 73, name, "start")
    for tick in y.ticks():
        yield Line(points=[(LEFT, y.at(tick)), (RIGHT, y.at(tick))], colour=GRID)
        yield _words(LEFT - 12, y.at(tick) + 7, short(tick), "end", DIM)


def _steps(x: AxisScale) -> Iterator[Shape]:
    for tick in (tick for tick in x.ticks() if tick == int(tick)):
        yield _words(x.at(tick), BOTTOM + 28, f"{int(tick):,}", colour=DIM)
    yield _words((LEFT + RIGHT) / 2, BOTTOM + 56, "step", colour=DIM)
