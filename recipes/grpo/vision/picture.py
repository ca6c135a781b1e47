"""The picture of a run: the reward of every seed, and masks drawn over held-out pictures before and after. One SVG.

`python -m recipes.grpo.vision.picture RUN [RUN ...] -o grpo_vision.svg` reads what `train --task vision` has left.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file

from .measuring import complete, held_out
from .model import make_model
from .rewards import masks_of
from .scenes import Scene
from .settings import Settings
from .words import make_processor

INK, FAINT, COLOURS = "#24292f", "#d0d7de", ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, TILE = 60, 40, 300, 190, 96


@dataclass(frozen=True)
class Shown:
    """A scene with its mask drawn over it, and what was said about it."""

    png: bytes
    question: str
    said: str


def masks_over(
    scenes: Sequence[Scene], masks: Sequence[NDArray[np.bool_]], said: Sequence[str], *, outside: float = 0.45,
    finer: int = 1,
) -> list[Shown]:  # fmt: skip
    """The picture darkened to `outside` where the mask is not, with an outline of 1 / `finer` pixels where it ends."""
    shown, cell = [], np.ones((finer, finer), dtype=np.uint8)
    for scene, small, words in zip(scenes, masks, said, strict=True):
        pixels = np.kron(np.asarray(scene.image.convert("RGB")), cell[..., None]).astype(float)
        mask = np.kron(small, cell).astype(bool)
        pixels[~mask] *= outside
        inner = mask.copy()
        for axis in (0, 1):
            for step in (1, -1):
                inner &= np.roll(mask, step, axis)
        pixels[mask & ~inner] = (255, 0, 200)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        shown.append(Shown(file.getvalue(), scene.question, words))
    return shown


def draw(curves: Mapping[str, Sequence[float]], columns: Mapping[str, Sequence[Shown]]) -> str:
    """The SVG as text: reward over steps on the left, a row of tiles for each state of the model on the right."""
    made = [f'<text x="{LEFT}" y="{TOP - 14}" font-weight="600">mean reward of a step (mean of ten)</text>']
    for mark in (0.4, 0.6, 0.8, 1.0):
        y = _y(mark)
        made.append(f'<path d="M{LEFT} {y:.1f}h{PANEL_WIDTH}" stroke="{FAINT}"/>')
        made.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="s">{mark:.1f}</text>')
    longest = max(len(values) for values in curves.values())
    for number, (name, values) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        smooth = [float(np.mean(values[max(0, place - 9) : place + 1])) for place in range(len(values))]
        points = " ".join(
            f"{LEFT + PANEL_WIDTH * place / max(1, longest - 1):.1f},{_y(value):.1f}"
            for place, value in enumerate(smooth)
        )
        made.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        made.append(
            f'<text x="{LEFT + 90 * number}" y="{TOP + PANEL_HEIGHT + 34}" fill="{colour}">{escape(name)}</text>'
        )
    made.append(f'<text x="{LEFT}" y="{TOP + PANEL_HEIGHT + 16}" class="s">step 1</text>')
    made.append(
        f'<text x="{LEFT + PANEL_WIDTH}" y="{TOP + PANEL_HEIGHT + 16}" text-anchor="end" class="s">{longest}</text>'
    )
    start = LEFT + PANEL_WIDTH + 40
    widest = max(len(row) for row in columns.values())
    for line, (title, row) in enumerate(columns.items()):
        top = TOP + line * (TILE + 70)
        made.append(f'<text x="{start}" y="{top - 14}" font-weight="600">{escape(title)}</text>')
        for place, each in enumerate(row):
            x, data = start + place * (TILE + 44), base64.b64encode(each.png).decode()
            made.append(
                f'<image x="{x}" y="{top}" width="{TILE}" height="{TILE}" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )
            made.append(f'<text x="{x}" y="{top + TILE + 14}" class="s">{escape(each.question)}</text>')
            made.append(f'<text x="{x}" y="{top + TILE + 28}" class="s" fill="{COLOURS[0]}">{escape(each.said)}</text>')
    width = start + widest * (TILE + 44)
    height = max(TOP + PANEL_HEIGHT + 50, TOP + len(columns) * (TILE + 70))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="13" fill="{INK}">\n<style>.s{{font-size:11px}}</style>\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(made) + "\n</svg>\n"
    )


def _y(value: float) -> float:
    """Rewards from 0.3 to 1 fill the panel."""
    return TOP + PANEL_HEIGHT * (1 - (min(1.0, max(0.3, value)) - 0.3) / 0.7)


def picture_of(runs: Sequence[Path], *, tiles: int = 6) -> str:
    """Curves of all runs, tiles of the first one, before and after, on the first held-out scenes."""
    results = [json.loads((run / "result.json").read_text(encoding="utf-8")) for run in runs]
    curves = {f"seed {r['settings']['seed']}": [point["reward"] for point in r["grpo"]["curve"]] for r in results}
    known = {field.name for field in fields(Settings)}
    kept = {name: value for name, value in results[0]["settings"].items() if name in known}
    settings = Settings(**{**kept, "device": "cpu"})
    processor = make_processor(settings)
    scenes = held_out(settings)[:tiles]
    columns: dict[str, list[Shown]] = {}
    for title, weights in (("after the warm start", "warm/model.safetensors"), ("after GRPO", "model.safetensors")):
        model: Any = make_model(settings, processor).eval()
        model.load_state_dict(load_file(runs[0] / weights))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            said = complete(model, processor, settings, scenes, greedy=False)
        masks = masks_of(model, processor, settings, scenes, said).numpy()
        words = [processor.tokenizer.decode(ids, skip_special_tokens=True).replace("it is the ", "") for ids in said]
        columns[title] = masks_over(
            scenes, list(masks), words,
            outside=1.0 if settings.pictures == "photographs" else 0.45,  # it is dark as it is, and should be seen
            finer=3 if settings.pictures == "digits" else 1,  # or the outline would cover the strokes
        )  # fmt: skip
    return draw(curves, columns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.grpo.vision.picture", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=Path("grpo_vision.svg"))
    given = parser.parse_args()
    given.output.write_text(picture_of(given.runs), encoding="utf-8")


if __name__ == "__main__":
    main()
