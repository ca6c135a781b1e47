"""Write docs/guarantees.md, the table guarantee x entry point, from the tests that show each cell.

python tools/guarantee_table.py            writes it
python tools/guarantee_table.py --check    writes nothing and exits with 1 if it is not current or a cell is empty

The tests in tests/guarantees are collected and not run: each says by a marker which cell it fills and with what.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS, PAGE = ROOT / "tests" / "guarantees", ROOT / "docs" / "guarantees.md"
MADE = "<!-- Made by tools/guarantee_table.py; edit the tests instead. -->"
INTRODUCTION = (
    "Each cell stands for tests in `tests/guarantees` that run at that entry point. What an entry point cannot "
    "guarantee is stated in its cell, and shown to the user at the start of the run."
)


class Collected:
    """A pytest plugin that keeps what the collected tests say about cells."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], list[str]] = {}
        self.claims: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("guarantee"):
                number, entry, cell = (marker.kwargs[name] for name in ("number", "entry", "cell"))
                known = self.cells.setdefault((number, entry), [])
                if cell not in known:
                    known.append(cell)
                name = item.nodeid.rpartition("/")[2].partition("[")[0]
                if name not in self.claims.setdefault(number, []):
                    self.claims[number].append(name)


def collect() -> Collected:
    """What the tests say, without running one."""
    found = Collected()
    quiet = io.StringIO()
    os.chdir(ROOT)
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(TESTS)]
    with contextlib.redirect_stdout(quiet):
        code = pytest.main(words, plugins=[found])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"The guarantee tests cannot be collected:\n{quiet.getvalue()[-2000:]}")
    return found


def cell_text(said: list[str]) -> str:
    """One cell: what stands beside a plain yes says more than the yes."""
    more = [text.removeprefix("yes; ").removeprefix("yes, ") for text in said if text != "yes"]
    positive = any(text.startswith("yes") for text in said)
    return "; ".join((["yes"] if positive else []) + more)


def page(found: Collected) -> tuple[str, list[str]]:
    """The page, and the cells that no test fills."""
    from registry import ENTRIES, TITLES  # beside the tests; importable once they were collected

    empty = [f"{number} at {entry}" for number in TITLES for entry in ENTRIES if not found.cells.get((number, entry))]
    rows = ["| guarantee | " + " | ".join(ENTRIES) + " |", "|---" * (len(ENTRIES) + 1) + "|"]
    for number, title in TITLES.items():
        cells = [cell_text(found.cells.get((number, entry), [])) for entry in ENTRIES]
        label = f"{number[1:]}. {title}" if number.startswith("G") else title
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    parts = [MADE, "# Guarantees at each entry point", INTRODUCTION, "\n".join(rows), "## The tests"]
    for number, title in TITLES.items():
        claims = "\n".join(f"- `tests/guarantees/{name}`" for name in sorted(found.claims.get(number, [])))
        parts.append(f"### {title}\n\n{claims}")
    return "\n\n".join(parts) + "\n", empty


def main() -> int:
    text, empty = page(collect())
    if empty:
        print(f"No test fills: {', '.join(empty)}.", file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/guarantees.md is not current: run python tools/guarantee_table.py.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
