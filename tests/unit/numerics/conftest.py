"""A board of the test's own, so that tests do not read each other's counts."""

from __future__ import annotations

import pytest

from steadygrad.numerics.notice_board import Board


@pytest.fixture
def board() -> Board:
    return Board()
