"""What people read is plain English: none of the avoided words in messages, help, pages, docstrings or names of tests.

Every check here is a function over text, and has a twin that shows it failing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = {
    "told of": r"told of",
    "land, for an update": r"(?:fit to )?land(?:s|ed|ing)?",
    "born": r"born",
    "that very": r"(?:that|this) very",
    "of its own": r"of (?:its|their) own",
    "put back": r"put(?:s|ting)? (?:\w+ )?back",
    "put right": r"put(?:s|ting)? (?:\w+ )?right",
    "sound, for finite": r"sound",
    "nobody, somebody": r"(?:no|some|any|every)body",
    "speaks for": r"sp(?:eaks?|oken|eaking) for",
    "does not hold together": r"holds? together",
    "without a word": r"without a word",
    "to blame": r"to blame",
    "by nought": r"nought",
    "door": r"doors?",
    "room": r"rooms?",
    "clinic": r"clinics?",
    "of its kind": r"of its kind",
    "fit to train and the like": r"no trace of it is left|the run does not tell|shall mean",
}
PATTERN = re.compile(r"\b(?:" + "|".join(AVOIDED.values()) + r")\b", re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
ALLOWED: dict[str, int] = {}
"""Files that may keep some, with how many and why. Empty, and meant to stay so."""


def avoided(text: str) -> list[str]:
    """The avoided words in a text, code left out."""
    return [found.group() for found in PATTERN.finditer(CODE.sub(" ", " ".join(text.split())))]


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of several words in a Python file: messages, help, docstrings, pages of rules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def in_python(path: Path) -> list[str]:
    found = sentences(path.read_text(encoding="utf-8"))
    return [f"{path.relative_to(ROOT)}:{line}: {word}" for line, text in found for word in avoided(text)]


def in_pages(path: Path) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {word}" for word in avoided(path.read_text(encoding="utf-8"))]


def in_names(path: Path) -> list[str]:
    """The avoided words in the names of a file's functions and classes, and in its own."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = [path.stem, *(node.name for node in tree if isinstance(node, defined))]
    return [f"{path.name}: {name}" for name in names if avoided(name.replace("_", " "))]


SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.html"))]


def test_no_message_help_or_docstring_uses_an_avoided_word() -> None:
    assert len(SOURCES) > 400
    assert [place for path in SOURCES for place in in_python(path)] == []


def test_no_page_uses_an_avoided_word() -> None:
    assert len(PAGES) > 150
    assert [place for path in PAGES for place in in_pages(path)] == []


def test_no_name_in_a_test_uses_an_avoided_word() -> None:
    assert len(TESTS) > 200
    assert [name for path in TESTS for name in in_names(path)] == []


def test_the_check_of_names_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "test_rooms.py"
    path.write_text("class Guard:\n    def test_no_bad_update_lands(self): ...\n\ndef test_a_landscape(): ...\n")
    assert in_names(path) == ["test_rooms.py: test_rooms", "test_rooms.py: test_no_bad_update_lands"]


def test_nothing_is_allowed_to_stay() -> None:
    assert ALLOWED == {}


@pytest.mark.parametrize(
    "text",
    [
        "No update landed that another rank refused.", "all fit to land", "born in the loss", "the clinic failed",
        "the state was put back", "if that very batch comes again", "nobody looked", "Doors", "files of their own",
        "the capsule does not hold together", "the gradient is sound", "left without\n    a word",
    ],
)  # fmt: skip
def test_the_check_can_fail(text: str) -> None:
    assert len(avoided(text)) == 1


@pytest.mark.parametrize("text", ["the landscape", "a sounding board", "`landed` is true", "restored", "its own files"])
def test_the_check_lets_plain_words_and_code_pass(text: str) -> None:
    assert avoided(text) == []
