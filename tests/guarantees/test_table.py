"""docs/guarantees.md is made from these tests and is current; no cell is empty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from drivers import ENTRIES, environment
from registry import TITLES

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current_and_no_cell_is_empty() -> None:
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "guarantee_table.py"), "--check"], capture_output=True, text=True,
        env=environment(),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    rows = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == len(TITLES) + 1
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == len(ENTRIES) + 1
        assert all(cells)
