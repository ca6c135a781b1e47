"""The cost table shows what was measured and names what was not."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.all_lines import PARTS, table


def test_the_table_shows_each_ratio_with_quartiles_and_names_what_is_missing(tmp_path: Path) -> None:
    row = {"ratio": 1.0179, "quartiles": [1.01, 1.038]}
    (tmp_path / "steady_run.json").write_text(json.dumps({"hardware": "a GPU", "wall": row}))
    loops = {"clip": {"ratio": 1.0, "quartiles": [1.0, 1.0]}, "guard": {"ratio": 1.002, "quartiles": [1.0, 1.004]}}
    (tmp_path / "small.json").write_text(json.dumps({"hardware": "a GPU", "small_10m/eager": loops}))
    text = table(tmp_path, at="abc1234", rounds=30, wanted=["steady_run", "small", "large"])
    assert "Commit abc1234; a GPU; 30 rounds" in text
    assert "| `steady run` (to the program alone) | 1.018 (1.010 to 1.038) |" in text
    assert "| small_10m/eager: `sg.Guard` | 1.002 (1.000 to 1.004) |" in text
    assert "Not measured: large." in text


def test_every_part_has_a_benchmark() -> None:
    here = Path(__file__).resolve().parents[2] / "benchmarks"
    assert [part.module for part in PARTS.values() if not (here / f"{part.module}.py").exists()] == []
