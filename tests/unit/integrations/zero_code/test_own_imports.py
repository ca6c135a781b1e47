"""What we import ourselves takes no name from the program, and no second copy of an installed library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from steadygrad.integrations.zero_code.launch.own_imports import own_imports

NAME = "a_library_of_this_test"


def folder(where: Path, text: str, *, installed: bool) -> str:
    where.mkdir()
    (where / f"{NAME}.py").write_text(f"origin = {text!r}\n")
    if installed:
        (where / f"{NAME}-1.0.dist-info").mkdir()
    return str(where)


@pytest.fixture(autouse=True)
def clean_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop(NAME, None)
    invalidate_caches()


def test_of_two_installed_copies_it_is_the_one_that_the_program_gets(tmp_path: Path) -> None:
    sys.path[:0] = [folder(tmp_path / "first", "first", installed=True)]
    sys.path.append(folder(tmp_path / "second", "second", installed=True))
    with own_imports():
        ours = import_module(NAME)
    assert ours.origin == "first"
    assert import_module(NAME) is ours


def test_a_module_of_the_program_is_not_run_by_us_and_is_found_by_the_program(tmp_path: Path) -> None:
    sys.path[:0] = [folder(tmp_path / "program", "program", installed=False)]
    sys.path.append(folder(tmp_path / "installed", "installed", installed=True))
    before = list(sys.path)
    with own_imports():
        ours = import_module(NAME)
    assert ours.origin == "installed"
    assert sys.path == before
    assert import_module(NAME).origin == "program"
