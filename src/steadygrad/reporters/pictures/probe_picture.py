"""The ranges of a probe as a picture in a file: SVG by itself, PNG where Pillow is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from ...records.checks.probe import Probe
from ...records.errors import UsageError
from ..terminal.console import shown
from ..terminal.print_probe import SPANS, axis

ROW, LEFT, WIDTH, TOP = 22, 240, 720, 56
COLOURS = {"fp16": "#c0392b", "bf16": "#7f8c8d", "fp8_e4m3": "#8e44ad", "fp8_e5m2": "#d68910"}
OUTPUTS, GRADIENTS, TOO_LARGE, INK, PAPER = "#2471a3", "#229954", "#c0392b", "#222222", "#ffffff"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `title` is shown on hover where the format can."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class PictureText:
    """A line of text; `anchor` is start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = INK


def write_picture(found: Probe, path: Path) -> None:
    """Write the picture in the format that the file's name ends in."""
    match path.suffix.lower():
        case ".svg":
            text = svg(found)
            _written(path, text.encode("utf-8"))
        case ".png":
            _write_png(found, path)
        case other:
            raise UsageError(f"A picture ends in .svg or .png, not in {other or 'nothing'}: {path}")


def _written(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def size(found: Probe) -> tuple[int, int]:
    """Width and height in pixels."""
    return LEFT + WIDTH + 24, TOP + ROW * max(1, len(found.modules)) + 48


def shapes(found: Probe) -> Iterator[Box | PictureText]:
    """The picture as boxes and words, from the back to the front."""
    low, high = axis(found.modules)
    bottom = TOP + ROW * max(1, len(found.modules))

    def x(power: float) -> float:
        return LEFT + (min(high, max(low, power)) - low) / (high - low) * WIDTH

    yield PictureText(12, 24, f"magnitudes of one step, powers of two (loss {found.loss:.6g})")
    for power in range(low - low % 8, high + 1, 8):
        if power >= low:
            yield Box(x(power), TOP, 1, bottom - TOP, "#e5e5e5")
            yield PictureText(x(power), bottom + 16, f"2^{power}", "middle")
    for number, trial in enumerate(found.trials):
        for power in SPANS[trial.dtype]:
            if low <= power <= high:
                yield Box(x(power), TOP, 1.5, bottom - TOP, COLOURS[trial.dtype], f"the end of {trial.dtype}")
        words = f"| {trial.dtype} {'fits' if trial.fits else 'does not fit'}"
        yield PictureText(LEFT + 160 * number, 46, words, "start", COLOURS[trial.dtype])
    for row, module in enumerate(found.modules):
        y = TOP + ROW * row
        yield PictureText(LEFT - 8, y + 14, shown(module.name, limit=36), "end")
        for offset, colour, smallest, largest, what in (
            (4, OUTPUTS, module.smallest, module.largest, "outputs"),
            (12, GRADIENTS, module.grad_smallest, module.grad_largest, "gradients"),
        ):
            if smallest and largest:
                start, stop = x(math.log2(smallest)), x(math.log2(largest))
                over = math.log2(largest) > SPANS["fp16"][1]
                title = f"{shown(module.name)} {what}: {smallest:.3g} to {largest:.3g}"
                yield Box(start, y + offset, max(2.0, stop - start), 6, TOO_LARGE if over else colour, title)
    yield Box(12, bottom + 30, 18, 6, OUTPUTS)
    yield PictureText(36, bottom + 36, "outputs")
    yield Box(110, bottom + 30, 18, 6, GRADIENTS)
    yield PictureText(134, bottom + 36, "gradients")
    yield Box(224, bottom + 30, 18, 6, TOO_LARGE)
    yield PictureText(248, bottom + 36, "beyond fp16")


def svg(found: Probe) -> str:
    """A picture that any browser opens. Names are escaped."""
    width, height = size(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for shape in shapes(found):
        if isinstance(shape, Box):
            title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
            parts.append(
                f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
                f"fill={quoteattr(shape.colour)}>{title}</rect>"
            )
        else:
            parts.append(
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" fill="{shape.colour}">'
                f"{escape(shape.text)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


def _write_png(found: Probe, path: Path) -> None:
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise UsageError("A .png needs Pillow (pip install pillow); an .svg needs nothing.") from None
    picture = Image.new("RGB", size(found), PAPER)
    draw = ImageDraw.Draw(picture)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in shapes(found):
        if isinstance(shape, Box):
            draw.rectangle((shape.x, shape.y, shape.x + shape.width, shape.y + shape.height), fill=shape.colour)
        else:
            draw.text((shape.x, shape.y), shape.text, fill=shape.colour, anchor=anchors[shape.anchor])
    try:
        picture.save(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}.") from None
