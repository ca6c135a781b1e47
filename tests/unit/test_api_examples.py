"""Every public name says what it takes, what it returns, and shows an example that is run here."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import steadygrad as sg

MODULES: list[ModuleType] = [sg, sg.numerics, sg.testing]
NAMES = [(module, name) for module in MODULES for name in module.__all__ if callable(getattr(module, name))]
SECTIONS = ("Args:", "Returns:")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def doc_of(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def run_examples(text: str, name: str) -> tuple[int, int, str]:
    """How many lines of the examples ran, how many came out otherwise, and what those printed."""
    found = doctest.DocTestParser().get_doctest(text, {"sg": sg, "torch": torch}, name, None, None)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(found, out=said.append)
    return result.attempted, result.failed, "".join(said)


def test_there_are_as_many_public_names_as_the_reference_promises() -> None:
    assert len(NAMES) >= 40


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: getattr(part, "__name__", part))
def test_a_public_name_says_what_it_takes_and_returns_and_its_example_runs(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    doc = doc_of(getattr(module, name))
    if "MonitorCallback" in name:
        pytest.importorskip("transformers")
    assert [section for section in SECTIONS if section not in doc] == []
    ran, failed, said = run_examples(doc, name)
    assert ran >= 1
    assert failed == 0, said


def test_an_example_that_is_wrong_fails() -> None:
    assert run_examples(">>> 1 + 1\n3\n", "wrong")[:2] == (1, 1)
    assert run_examples(">>> sg.nothing_of_that_name\n", "missing")[:2] == (1, 1)
    assert run_examples("No example.", "none")[:2] == (0, 0)
