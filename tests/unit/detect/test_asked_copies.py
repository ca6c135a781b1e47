"""A data set is asked by a copy only where that is small."""

from __future__ import annotations

from typing import Any

import pytest

from steadygrad.detect.loop.measured import asked_copies


class Table:
    def __init__(self, rows: int) -> None:
        self.rows = [f"row {number}" for number in range(rows)]


def test_a_copy_is_asked_and_one_that_turns_out_large_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def question(copy: Any) -> int:
        return len(copy().rows)

    assert asked_copies.ask_copy(Table(2_000), question) == 2_000
    monkeypatch.setattr(asked_copies, "MAX_BYTES", 8_000)
    assert asked_copies.size_of(Table(2_000)) <= 8_000  # it looks small: a list counts by its entries
    assert asked_copies.ask_copy(Table(2_000), question) is None
