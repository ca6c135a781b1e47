"""The unit recipes use public names of steadygrad only, and their pictures show what is there."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recipes.common import plots

import steadygrad as sg

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
FILES = [*RECIPES.glob("*.py"), *(RECIPES / "units").glob("*.py"), *(RECIPES / "common").glob("*.py")]
SVG = "{http://www.w3.org/2000/svg}"
READERS = ("steadygrad.journal", "steadygrad.reporters.pictures.plot_file", "steadygrad.reporters.pictures.plot_scene",
           "steadygrad.reporters.pictures.plot_shapes")  # fmt: skip
"""Public as modules: the functions that read a run directory, and those that draw for `steady plot`."""


def private_uses(source: str) -> list[str]:
    """Modules and names of steadygrad in this source that it does not show to everybody."""
    public = {*sg.__all__, "numerics"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "steadygrad":
            if node.module in READERS:
                continue
            found += [node.module] if "." in node.module else [a.name for a in node.names if a.name not in public]
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("steadygrad.")]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sg":
            found += [node.attr] if node.attr not in public else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_uses_public_names_only(path: Path) -> None:
    assert private_uses(path.read_text(encoding="utf-8")) == []


def test_there_are_recipes_and_the_check_can_fail() -> None:
    assert len(FILES) > 12
    assert private_uses("from steadygrad.integrations.guard import Guard") == ["steadygrad.integrations.guard"]
    assert private_uses("import steadygrad.engine") == ["steadygrad.engine"]
    assert private_uses("import steadygrad as sg\nsg.clinic.x()") == ["clinic"]
    assert private_uses("from steadygrad import Guard, rules") == ["rules"]


def test_bars_stand_as_high_as_their_numbers(tmp_path: Path) -> None:
    plots.bars(tmp_path / "b.svg", "a < b", {"accuracy": {"before": 0.25, "after": 0.5}})
    root = ElementTree.parse(tmp_path / "b.svg").getroot()
    areas = [
        [tuple(map(float, p.split(","))) for p in each.get("points", "").split()] for each in root.iter(f"{SVG}polygon")
    ]
    heights = [max(y for _, y in area) - min(y for _, y in area) for area in areas][-2:]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "0.25", "0.50", "before", "after", "accuracy"} <= set(texts)


def test_a_curve_leaves_out_what_cannot_be_drawn(tmp_path: Path) -> None:
    points = [(1.0, 4.0), (2.0, math.nan), (3.0, 2.0), (4.0, math.inf), (5.0, 0.0), (6.0, 1.0)]
    plots.lines(tmp_path / "l.svg", "loss", {"loss": points})
    root = ElementTree.parse(tmp_path / "l.svg").getroot()
    (curve,) = [line for line in root.iter(f"{SVG}polyline") if line.get("stroke-width") == "3"]
    drawn = [tuple(map(float, point.split(","))) for point in (curve.get("points") or "").split()]
    assert len(drawn) == 3
    heights = [y for _, y in drawn]
    assert heights[1] - heights[0] == pytest.approx(
        heights[2] - heights[1], abs=0.2
    )  # halving is one step of a log axis
    plots.lines(tmp_path / "none.svg", "nothing", {"loss": []})
    assert (tmp_path / "none.svg").is_file()
