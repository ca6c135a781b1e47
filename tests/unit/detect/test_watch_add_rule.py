"""The tool that starts a rule gives it the next code and a file that cannot pass unfinished."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from steadygrad.records import rules

TOOL = Path(__file__).resolve().parents[3] / "tools" / "add_rule.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("add_rule", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_next_code_comes_after_the_highest_there_is(tool: ModuleType, tmp_path: Path) -> None:
    first = tool.write_rule("SY2", "slow drift", "The loss drifts", tmp_path)
    second = tool.write_rule("SY2", "fast drift", "The loss drifts fast.", tmp_path)
    assert [tool.RULE.findall(path.read_text()) for path in (first, second)] == [["SY201"], ["SY202"]]
    highest = max(page.code for page in rules.pages() if page.code.startswith("SY1"))
    assert tool.next_code("SY1") == f"SY{int(highest[2:]) + 1}"


@pytest.mark.parametrize(
    ("series", "file"),
    [
        ("SY1", "detect/detectors/dead_units.py"),
        ("SY4", "detect/sampled/rules/dead_units.py"),
        ("DX1", "diagnosis/causes/dx101_dead_units.py"),
        ("PF2", "checkup/rules/pf201_dead_units.py"),
        ("CK1", "checkup/scan/rules/ck101_dead_units.py"),
    ],
)
def test_the_file_is_a_rule_in_its_package_with_all_headings(
    tool: ModuleType, tmp_path: Path, series: str, file: str
) -> None:
    path = tool.write_rule(series, "Dead units!", "Units that are never active", tmp_path)
    assert path == tmp_path / file
    page = rules._page_of(path)
    assert page is not None
    assert (page.slug, page.summary) == ("dead_units", "Units that are never active.")
    assert tuple(page.sections) == rules.HEADINGS
    assert not any(page.sections.values())
    ast.parse(path.read_text())


def test_an_unfinished_detector_fails_loudly(tool: ModuleType, tmp_path: Path) -> None:
    path = tool.write_rule("SY1", "odd thing", "Something odd", tmp_path)
    assert path.read_text().count("raise NotImplementedError") == 3


@pytest.mark.parametrize(("series", "name"), [("SY", "x"), ("ZZ1", "x"), ("SY1", "!!!")])
def test_nonsense_is_refused_and_nothing_written(tool: ModuleType, tmp_path: Path, series: str, name: str) -> None:
    with pytest.raises(SystemExit):
        tool.write_rule(series, name, "A summary", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_rule_is_left_alone(tool: ModuleType, tmp_path: Path) -> None:
    path = tool.write_rule("SY1", "odd thing", "Something odd", tmp_path)
    before = path.read_text()
    with pytest.raises(SystemExit, match="there already"):
        tool.write_rule("SY1", "odd thing", "Something else", tmp_path)
    assert path.read_text() == before
