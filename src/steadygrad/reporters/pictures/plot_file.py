"""The picture of a run as a file: SVG needs nothing, PNG needs Pillow. Both draw the same shapes."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ...journal import safe_files
from ...records.errors import JournalError, UsageError
from ..run_data.follow_run import RunFollower
from ..run_data.run_summary import RunSummary, summarise
from .plot_scene import HEIGHT, PAPER, WIDTH, Scene, scene_of
from .plot_shapes import Area, Line, PlotText, Shape

_FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_FINER = 3  # a PNG is drawn this many times as large and then made smaller, which makes its lines smooth
_KINDS = (".svg", ".png")


def write_plot(run_dir: str | os.PathLike[str], output: Path, *, log: bool = True) -> tuple[RunSummary, Scene]:
    """Draw a run into `output`, whole or not at all. Raises JournalError or UsageError with one sentence."""
    kind = output.suffix.lower()
    if kind not in _KINDS:
        raise UsageError(f"{output} must end in .png or .svg, so that it is known what to write.")
    follower = RunFollower(run_dir)
    follower.poll()
    story = summarise(run_dir, follower)
    if story.rows is None or not story.rows.num_rows:
        raise JournalError(f"{run_dir} holds no steps yet, so there is nothing to draw.")
    scene = scene_of(story, log=log)
    data = svg(scene.shapes).encode("utf-8") if kind == ".svg" else png(scene.shapes)
    try:
        safe_files.replace_file(output, data)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {safe_files.why(error)}. Pass another place with -o.") from error
    return story, scene


def svg(shapes: Sequence[Shape]) -> str:
    """The picture as SVG: text stays text, and nothing in it can run."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f"font-family={quoteattr(_FONT)}>"
    ]
    for shape in shapes:
        match shape:
            case Area():
                parts.append(f'<polygon points="{_places(shape.points)}" fill="{shape.colour}"/>')
            case Line():
                dash = f' stroke-dasharray="{shape.dash:g}"' if shape.dash else ""
                parts.append(
                    f'<polyline points="{_places(shape.points)}" fill="none" stroke="{shape.colour}" '
                    f'stroke-width="{shape.width:g}" stroke-linejoin="round"{dash}/>'
                )
            case PlotText():
                parts.append(
                    f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}" fill="{shape.colour}" '
                    f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
                )
    return "\n".join([*parts, "</svg>", ""])


def _places(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def png(shapes: Sequence[Shape]) -> bytes:
    """The picture as PNG, in twice the size it has as SVG, for screens and papers that are fine enough."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise UsageError("A .png needs Pillow: pip install 'steadygrad[pictures]'. An .svg needs nothing.") from None
    picture = Image.new("RGB", (WIDTH * _FINER, HEIGHT * _FINER), PAPER)
    draw = ImageDraw.Draw(picture)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in shapes:
        match shape:
            case Area():
                draw.polygon(_finer(shape.points), fill=shape.colour)
            case Line():
                for piece in _dashes(shape):
                    draw.line(
                        _finer(piece), fill=shape.colour, width=max(1, round(shape.width * _FINER)), joint="curve"
                    )
            case PlotText():
                font: Any = ImageFont.load_default(size=shape.size * _FINER)
                place = (shape.x * _FINER, shape.y * _FINER)
                draw.text(place, shape.text, fill=shape.colour, font=font, anchor=anchors[shape.anchor])
    small = picture.resize((WIDTH * 2, HEIGHT * 2), Image.Resampling.LANCZOS)
    made = io.BytesIO()
    small.save(made, format="PNG", optimize=True)
    return made.getvalue()


def _finer(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x * _FINER, y * _FINER) for x, y in points]


def _dashes(line: Line) -> list[Sequence[tuple[float, float]]]:
    """The dashes of a line; only level lines have any."""
    if not line.dash:
        return [line.points]
    (left, level), (right, _) = line.points[0], line.points[-1]
    count = int((right - left) / (2 * line.dash)) + 1
    starts = (left + 2 * line.dash * number for number in range(count))
    return [[(start, level), (min(start + line.dash, right), level)] for start in starts]
