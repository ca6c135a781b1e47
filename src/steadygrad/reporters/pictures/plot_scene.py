"""A run as a picture: the loss above and the gradient norm below, over the same steps, with what happened marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..run_data.downsample import moving_mean, sampled
from ..run_data.run_summary import RunSummary
from ..run_data.step_columns import RankColumns
from ..terminal.console import number, shown
from .plot_shapes import Area, AxisScale, Line, PlotText, Point, Shape, scale_for, short

WIDTH, HEIGHT = 1200, 760
LEFT, RIGHT, TOP, BOTTOM = 84.0, 1176.0, 98.0, 712.0
TWO_PANELS: tuple[tuple[float, float], ...] = ((TOP, 430.0), (476.0, BOTTOM))
THREE_PANELS: tuple[tuple[float, float], ...] = ((TOP, 366.0), (404.0, 578.0), (616.0, BOTTOM))
POINTS = 1000
SMOOTHED_FROM = 60
MAX_LABELS = 24
PAPER, INK, DIM, GRID = "#ffffff", "#1c2330", "#667085", "#e4e7ec"
CURVE, BAND, SMOOTH, CLIP, BAD, BAD_BAND = "#7aa7e0", "#d6e4f7", "#1d4f9e", "#c77700", "#c8322b", "#fbe4e2"
EARLIER = "#c3c8d1"


@dataclass(frozen=True, slots=True)
class Scene:
    """The shapes in the order they are drawn, and sentences on what could not be drawn as asked."""

    shapes: list[Shape]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Curve:
    """What a panel shows: its title, and a value for each of some steps."""

    title: str
    steps: Any
    values: Any
    from_zero: bool = False
    earlier: Any = ()
    """Attempts that a rollback undid, drawn faint."""


_CURVES = (("loss", "loss"), ("grad_norm", "gradient norm"))


def scene_of(story: RunSummary, *, log: bool = True) -> Scene:
    """The picture of one run that has steps. `log` asks for logarithmic axes; values that have none make it linear."""
    rows = story.rows
    assert rows is not None
    steps = rows.final("step").astype(np.float64)
    x = AxisScale(float(steps.min()), float(steps.max()) or 1.0, LEFT, RIGHT)
    if x.low == x.high:
        x = AxisScale(x.low - 1, x.high + 1, LEFT, RIGHT)
    notes: list[str] = []
    shapes: list[Shape] = [Area(points=_rectangle(0, 0, WIDTH, HEIGHT), colour=PAPER)]
    shapes += _title(story)
    what, sampled_at, memory = rows.memory()
    panels = THREE_PANELS if len(memory) else TWO_PANELS
    shapes += _incident_bands(story, x, panels)
    loss, norm = (
        Curve(name, rows.final("step"), rows.final(column), earlier=rows.earlier(column)) for column, name in _CURVES
    )
    shapes += _panel(rows, loss, x, panels[0], log=log, notes=notes)
    shapes += _panel(rows, norm, x, panels[1], log=log, notes=notes, clip=story.clip)
    if len(memory):
        used = Curve(f"{what} memory, GB", sampled_at, memory / 1e9, from_zero=True)
        shapes += _panel(rows, used, x, panels[2], log=False, notes=notes)
    shapes += _step_axis(x)
    shapes += _caption(len(steps), len(steps) > POINTS, rerun=len(steps) < rows.num_rows)
    shapes += _incident_labels(story, x)
    return Scene(shapes, notes)


def _rectangle(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _title(story: RunSummary) -> Iterator[Shape]:
    yield PlotText(x=LEFT, y=32, text=shown(story.name, limit=90), colour=INK, size=20)
    yield PlotText(x=LEFT, y=54, text=shown(story.headline, limit=150), colour=DIM, size=13)


def _panel(
    rows: RankColumns, curve: Curve, x: AxisScale, place: tuple[float, float], *, log: bool, notes: list[str],
    clip: float | None = None,
) -> Iterator[Shape]:  # fmt: skip
    top, bottom = place
    title, steps, values = curve.title, curve.steps, curve.values
    finite = values[np.isfinite(values)]
    if finite.size and not finite.any():
        notes.append(f"the {title} is zero at every step, so it is not drawn")
        values, finite = np.full(len(values), np.nan), finite[:0]
    if log and finite.size and finite.min() <= 0:
        # A zero now and then (a masked batch) is no reason to give the logarithm up; a loss below zero is.
        if finite.min() < 0 or not (finite > 0).any():
            log = False
            notes.append(f"the {title} is not always above zero, so its axis is linear")
        else:
            values = np.where(values == 0, np.nan, values)
            finite = finite[finite > 0]
            notes.append(f"steps at which the {title} is zero are left out: a logarithmic axis has no zero")
    points = sampled(steps, values, limit=POINTS)
    shown_values = [value for name in ("low", "mid", "high") for value in points.get(name, []) if value is not None]
    also = [clip] if clip else [0.0] if curve.from_zero else []
    y = scale_for([*shown_values, *also], bottom, top, log=log)
    kind = ", log scale" if log else ""
    yield PlotText(x=LEFT, y=top - 8, text=f"{title}{kind}", colour=INK, size=14)
    for tick in y.ticks()[:: 2 if bottom - top < 120 else 1]:
        level = y.at(tick)
        yield Line(points=[(LEFT, level), (RIGHT, level)], colour=GRID)
        yield PlotText(x=LEFT - 8, y=level + 4, text=short(tick), colour=DIM, size=12, anchor="end")
    if not finite.size:
        yield PlotText(
            x=(LEFT + RIGHT) / 2,
            y=(top + bottom) / 2,
            text="no finite value was recorded",
            colour=BAD,
            anchor="middle",
        )
    for _, lost, then in curve.earlier:
        gaps = np.flatnonzero(np.diff(lost) != 1) + 1
        drawn = [float(value) if np.isfinite(value) and (value > 0 or not log) else None for value in then]
        for part in np.split(np.arange(len(lost)), gaps):
            yield from _lines([x.at(float(lost[i])) for i in part], [drawn[i] for i in part], y, EARLIER, 1.0)
    yield from _curve(steps, values, points, x, y)
    if clip:
        level = y.at(clip)
        yield Line(points=[(LEFT, level), (RIGHT, level)], colour=CLIP, width=1.5, dash=7)
        yield PlotText(x=RIGHT - 4, y=level - 5, text=f"clipped to {number(clip)}", colour=CLIP, size=12, anchor="end")
    yield from _refused(rows, x, top)
    yield Line(points=[(LEFT, top), (LEFT, bottom), (RIGHT, bottom)], colour=DIM)


def _curve(steps: Any, values: Any, points: dict[str, Any], x: AxisScale, y: AxisScale) -> Iterator[Shape]:
    places = [x.at(step) for step in points["x"]]
    if "low" in points:
        for run in _runs(points["low"], points["high"]):
            upper = [(places[i], y.at(points["high"][i])) for i in run]
            lower = [(places[i], y.at(points["low"][i])) for i in reversed(run)]
            yield Area(points=[*upper, *lower], colour=BAND)
    smooth = moving_mean(steps, values, points=points) if len(values) >= SMOOTHED_FROM else None
    yield from _lines(places, points["mid"], y, CURVE if smooth else SMOOTH, 1.2)
    if smooth:
        # Only where there is a value: a mean carried over a gap would invent steps.
        held = [mean if mid is not None else None for mean, mid in zip(smooth, points["mid"], strict=True)]
        yield from _lines(places, held, y, SMOOTH, 2.0)


def _lines(
    places: Sequence[float], values: Sequence[float | None], y: AxisScale, colour: str, width: float
) -> Iterator[Shape]:
    for run in _runs(values):
        line = [(places[i], y.at(value)) for i in run if (value := values[i]) is not None]
        if len(line) == 1:  # a value alone among gaps would not be seen
            line = [(line[0][0] - 1, line[0][1]), (line[0][0] + 1, line[0][1])]
        yield Line(points=line, colour=colour, width=width)


def _runs(*columns: Sequence[float | None]) -> Iterator[list[int]]:
    """The stretches of places at which every column has a value."""
    run: list[int] = []
    for place, values in enumerate(zip(*columns, strict=True)):
        if None not in values:
            run.append(place)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _refused(rows: RankColumns, x: AxisScale, top: float) -> Iterator[Shape]:
    """A short stroke at the top edge for every refused step; those that would fall on one pixel are drawn once."""
    pixels = sorted({round(x.at(float(step)), 1) for step in rows.final("step")[rows.refused]})
    for pixel in pixels:
        yield Line(points=[(pixel, top), (pixel, top + 7)], colour=BAD, width=1.4)


def _incident_bands(story: RunSummary, x: AxisScale, panels: Sequence[tuple[float, float]]) -> Iterator[Shape]:
    for incident in story.incidents:
        left, right = x.at(incident.first_step), x.at(incident.last_step)
        right = max(right, left + 1.5)
        for top, bottom in panels:
            yield Area(points=_rectangle(left, top, right, bottom), colour=BAD_BAND)


def _incident_labels(story: RunSummary, x: AxisScale) -> Iterator[Shape]:
    """The numbers of incidents above the loss, as many as there is space for."""
    last = -1e9
    drawn = 0
    for incident in story.incidents:
        place = x.at((incident.first_step + incident.last_step) / 2)
        if place - last >= 16 and drawn < MAX_LABELS and place > LEFT + 115:
            yield PlotText(x=place, y=TOP - 8, text=str(incident.number), colour=BAD, size=12, anchor="middle")
            last, drawn = place, drawn + 1
    if story.incidents:
        count = f"{len(story.incidents)} incident" + ("s" if len(story.incidents) > 1 else "")
        yield PlotText(x=RIGHT, y=32, text=f"{count}, refused steps marked in red", colour=BAD, size=12, anchor="end")


def _step_axis(x: AxisScale) -> Iterator[Shape]:
    ticks = [tick for tick in x.ticks() if tick == int(tick)]
    for tick in ticks:
        place = x.at(tick)
        yield Line(points=[(place, BOTTOM), (place, BOTTOM + 5)], colour=DIM)
        yield PlotText(x=place, y=BOTTOM + 20, text=f"{int(tick):,}", colour=DIM, size=12, anchor="middle")
    yield PlotText(x=(LEFT + RIGHT) / 2, y=BOTTOM + 38, text="step", colour=DIM, size=13, anchor="middle")


def _caption(num_rows: int, stretched: bool, *, rerun: bool) -> Iterator[Shape]:
    parts = ["grey: earlier attempts"] if rerun else []
    if num_rows >= SMOOTHED_FROM:
        fine = "light: lowest to highest of each stretch of steps" if stretched else "light: every step"
        parts += [fine, "dark: moving mean"]
    if parts:
        yield PlotText(x=RIGHT, y=BOTTOM + 38, text="; ".join(parts), colour=DIM, size=12, anchor="end")
