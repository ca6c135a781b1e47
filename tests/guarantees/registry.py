"""Ties a test to a cell of the table guarantee x entry point, from which docs/guarantees.md is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from drivers import ENTRIES, RANKS

TITLES = {
    "G1": "Healthy runs are unchanged",
    "G2": "No bad update is applied",
    "G3": "A skipped batch leaves no trace",
    "G4": "Free on the hot path",
    "G5": "Never silent",
    "G6": "Claims are demonstrated",
    "G7": "Internal errors do not stop training",
    "G8": "All ranks decide alike",
    "G9": "A run directory is untrusted data",
    "G10": "Detectors survive what they detect",
    "H": "User state is not modified",
}


def guarantee(
    number: str, cells: Mapping[str, str] | None = None, *, entries: Sequence[str] = ENTRIES, cell: str = "yes",
    unmet: Mapping[str, str] | None = None,
) -> Callable[[Any], Any]:  # fmt: skip
    """Run a test with `entry` at these entry points. `cells` says what stands in the table where it is not `cell`.

    `unmet` names entry points at which the test fails today, and how: they are left out of the suite (`-m unmet` runs
    them), and the table says so.
    """
    given, missing = cells or {}, unmet or {}
    assert set(missing) <= set(entries), "an unmet guarantee of an entry point that the test does not run at"
    assert set(given) <= set(entries), "a cell of an entry point that the test does not run at"

    def parametrized(test: Any) -> Any:
        params = []
        for entry in entries:
            text = f"not met yet: {missing[entry]}" if entry in missing else given.get(entry, cell)
            marks = [pytest.mark.guarantee(number=number, entry=entry, cell=text)]
            if entry in missing:
                marks.append(pytest.mark.unmet)
            if entry == RANKS:
                marks.append(pytest.mark.distributed)
            params.append(pytest.param(entry, id=entry.replace(" ", "_"), marks=marks))
        return pytest.mark.parametrize("entry", params)(test)

    return parametrized


def states(number: str, cells: Mapping[str, str]) -> Callable[[Any], Any]:
    """What this test shows of these entry points at once; for a cell that no parametrisation fills."""

    def marked(test: Any) -> Any:
        for entry, cell in cells.items():
            test = pytest.mark.guarantee(number=number, entry=entry, cell=cell)(test)
        return test

    return marked
