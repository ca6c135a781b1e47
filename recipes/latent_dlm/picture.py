"""The picture of a run: both validation losses, an ill run guarded and not, and what was sampled. One small SVG.

`python -m recipes.latent_dlm.picture RUN_DIR [SICK.json] -o latent_dlm.svg` reads what `train`, `eval` and
`train --sick --json` have left.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

INK, FAINT, BLUE, ORANGE, RED = "#24292f", "#d0d7de", "#0969da", "#bc4c00", "#cf222e"
PANEL_WIDTH, PANEL_HEIGHT, GAP = 250, 150, 50
Points = Sequence[tuple[float, float | None]]


def _panel(left: float, title: str, curves: Mapping[str, tuple[str, Points]]) -> list[str]:
    """Axes, a title and a line for each curve; a curve's gaps are left out, and one that ends early ends in a cross."""
    top = 40
    known = [(x, y) for _, points in curves.values() for x, y in points if y is not None]
    all_x = [x for _, points in curves.values() for x, _ in points]
    low, high = min(y for _, y in known), max(y for _, y in known)
    low, high = low - 0.05 * (high - low or 1.0), high + 0.05 * (high - low or 1.0)
    last = max(all_x) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + PANEL_WIDTH * x / last, top + PANEL_HEIGHT * (high - y) / (high - low)

    made = [f'<text x="{left}" y="{top - 14}" font-weight="600">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = top + PANEL_HEIGHT * share
        value = high - (high - low) * share
        made.append(f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="{FAINT}"/>')
        made.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="s">{value:.2f}</text>')
    made.append(f'<text x="{left}" y="{top + PANEL_HEIGHT + 16}" class="s">step 0</text>')
    made.append(
        f'<text x="{left + PANEL_WIDTH}" y="{top + PANEL_HEIGHT + 16}" text-anchor="end" class="s">{last:g}</text>'
    )
    for number, (name, (colour, points)) in enumerate(curves.items()):
        placed = [at(x, y) for x, y in points if y is not None]
        if len(placed) > 1:
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            made.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if placed and points[-1][1] is None:
            x, y = placed[-1]
            made.append(f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="2"/>')
            made.append(f'<text x="{x + 10:.1f}" y="{y + 4:.1f}" class="s" fill="{colour}">NaN from here on</text>')
        if len(curves) > 1:
            made.append(
                f'<text x="{left + PANEL_WIDTH}" y="{top + 14 + 15 * number}" text-anchor="end" fill="{colour}">'
                f"{escape(name)}</text>"
            )
    return made


def _cut(text: str, most: int = 58) -> str:
    """Short enough for its column. An untrained model may say any byte, and XML has no place for control characters."""
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def draw(
    name: str,
    validation: Sequence[Mapping[str, float]],
    examples: Sequence[tuple[str, str]],
    ill: Mapping[str, Sequence[float | None]] | None = None,
) -> str:
    """The SVG as text. `ill` is loop -> loss of every step, None where it was not finite."""
    panels = [
        _panel(60, f"{name}: validation text loss", {"text": (BLUE, [(v["step"], v["text"]) for v in validation])}),
        _panel(
            60 + PANEL_WIDTH + GAP,
            "validation latent loss",
            {"latent": (ORANGE, [(v["step"], v["latent"]) for v in validation])},
        ),
    ]
    if ill:
        colours = {"plain": INK, "zeroing": RED, "guarded": BLUE}
        curves = {loop: (colours[loop], list(enumerate(losses))) for loop, losses in ill.items()}
        panels.append(_panel(60 + 2 * (PANEL_WIDTH + GAP), "a blank line in the data: loss", curves))
    width = 60 + len(panels) * (PANEL_WIDTH + GAP)
    top = 40 + PANEL_HEIGHT + 48
    rows = [f'<text x="60" y="{top}" font-weight="600">held-out sentence, and text from its latent alone</text>']
    rows = rows if examples else []
    for number, (wanted, text) in enumerate(examples):
        y = top + 22 + 20 * number
        rows.append(f'<text x="60" y="{y}">{escape(_cut(wanted))}</text>')
        rows.append(f'<text x="{60 + width // 2 - 30}" y="{y}" fill="{BLUE}">{escape(_cut(text))}</text>')
    height = top + 22 + 20 * len(examples)
    body = "\n".join(line for panel in (*panels, rows) for line in panel)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="13" fill="{INK}">\n'
        "<style>.s{font-size:11px}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.latent_dlm.picture", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("sick", type=Path, nargs="?", help="what `train --sick --json` printed")
    parser.add_argument("-o", "--output", type=Path, default=Path("latent_dlm.svg"))
    given = parser.parse_args()
    validation = [json.loads(line) for line in (given.run_dir / "validation.jsonl").read_text().splitlines()]
    evaluated = given.run_dir / "eval.json"
    examples = json.loads(evaluated.read_text())["examples"][:8] if evaluated.is_file() else []
    ill = {}
    if given.sick is not None:
        loops = json.loads(given.sick.read_text())["loops"]
        ill = {each["loop"]: each["losses"] for each in loops if each["loop"] != "plain"}
    given.output.write_text(draw(given.run_dir.name, validation, examples, ill), encoding="utf-8")


if __name__ == "__main__":
    main()
