"""A curve of a run as a Textual widget, on a log axis where all values are above zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from textual_plot import AxisFormatter, HiResMode, NumericAxisFormatter, PlotWidget

from ..run_data.downsample import sampled
from ..run_data.step_columns import RankColumns
from ..terminal.console import number

MAX_MARKS = 200


class Powers(AxisFormatter):
    """Ticks for an axis that holds logarithms to base ten: labels are the numbers themselves."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        wide = max_ - min_
        leads = (1, 2, 3, 5, 7) if wide < 0.7 else (1, 2, 5) if wide < 2 else (1,)
        every = max(1, math.ceil(wide / max_ticks))
        powers = [power for power in range(math.floor(min_), math.ceil(max_) + 1) if power % every == 0]
        ticks = [power + math.log10(lead) for power in powers for lead in leads]
        return [tick for tick in ticks if min_ <= tick <= max_]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        return [number(10.0**tick, digits=3) for tick in ticks]


class Steps(AxisFormatter):
    """Whole steps, as many as fit without touching each other."""

    def __init__(self, width: int) -> None:
        self._width = width

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        room = max(1, min(max_ticks, self._width // (len(f"{max_:,.0f}") + 3)))
        rough = max(1.0, (max_ - min_) / room)
        power = 10.0 ** math.floor(math.log10(rough))
        every = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
        return [float(tick) for tick in np.arange(math.ceil(min_ / every) * every, max_ + 1, every)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        return [f"{tick:,.0f}" for tick in ticks]


class Curve(PlotWidget, can_focus=False):
    """One curve with the incidents of the run marked."""

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, allow_pan_and_zoom=False)
        self.border_title = title

    def on_mount(self) -> None:
        self.margin_top, self.margin_bottom, self.margin_left = 0, 1, 8

    def show(
        self, rows: RankColumns | None, name: str, *, marks: Sequence[int], last: int | None, clip: float | None
    ) -> None:
        """Draws the column `name`, all of it or its last steps."""
        self.clear()
        if rows is None or not rows.num_rows:
            return
        steps, values = rows.final("step"), rows.final(name)
        if last is not None:
            steps, values = steps[-last:], values[-last:]
        points = sampled(steps, values, limit=max(40, self.size.width * 2))
        x = np.array(points["x"], dtype=np.float64)
        lines = {key: np.array(points[key], dtype=np.float64) for key in ("low", "high", "mid") if key in points}
        finite = np.isfinite(values)
        log = bool(finite.any()) and bool((values[finite] > 0).all())
        self.set_y_formatter(Powers() if log else NumericAxisFormatter())
        first, end = float(steps.min()), float(max(steps.max(), steps.min() + 1))
        self.set_x_formatter(Steps(self.size.width - 10))
        self.set_xlimits(first, end)
        for mark in [mark for mark in marks if first <= mark <= end][-MAX_MARKS:]:
            self.add_v_line(float(mark), line_style="red")
        if clip is not None and log:
            self.plot(x=[first, end], y=[math.log10(clip)] * 2, line_style="yellow", hires_mode=HiResMode.BRAILLE)
        for key, style in (("low", "blue"), ("high", "blue"), ("mid", "cyan")):
            if key in lines and np.isfinite(lines[key]).any():
                y = np.log10(lines[key]) if log else lines[key]
                self.plot(x=x, y=y, line_style=style, hires_mode=HiResMode.BRAILLE)
