"""docs/reports.md as data: its sections, the Python that prepares each, and a row for everything that was asked for.

A row has a number, what was asked, what does it and what comes of it. What does it is the first code of its cell: a
command (`steady ...`, `python -m recipes...`) or Python. Every code in the last cell has to be found in what is printed
or in the value; `...` stands for anything. `exit 1` is the exit code, 0 where none is named. A row marked long takes
minutes. Blocks of `py` prepare the rows below them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/reports.md"
_CODE = re.compile(r"``\s(.+?)\s``|`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One thing that was asked for."""

    number: str
    asked: str
    does: str
    shown: tuple[str, ...]
    code: int
    long: bool

    @property
    def is_command(self) -> bool:
        return self.does.startswith(("steady ", "python -m "))

    @property
    def section(self) -> str:
        return self.number.partition(".")[0]


def codes(cell: str) -> list[str]:
    return [one or two for one, two in _CODE.findall(cell)]


def read(text: str) -> tuple[dict[str, str], list[Row]]:
    """The Python that prepares each section ("" is that of the page), and all rows."""
    setups, rows, section = {"": ""}, [], ""
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        if heading := re.match(r"## (\d)\. ", part):
            section = heading[1]
        elif part.startswith("## "):
            section = part.splitlines()[0]
        blocks = re.findall(r"^```py\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        setups[section] = setups.get(section, "") + "\n".join(blocks)
        rows += [_row(line) for line in part.splitlines() if re.match(r"\| \d\.\d+", line)]
    return setups, rows


def _row(line: str) -> Row:
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    assert len(cells) == 4, f"not four cells: {line}"
    number, asked, does, result = cells
    found = codes(does)
    assert found, f"row {number} names nothing that does it"
    code = re.search(r"\bexit (\d+)", result)
    shown = tuple(codes(result))
    assert shown, f"row {number} states nothing that is printed"
    return Row(
        number.removesuffix(" long"), asked, found[0], shown, int(code[1]) if code else 0, number.endswith("long")
    )
