"""A board of the test's own, so that tests do not read each other's counts."""

from __future__ import annotations

import pytest

from steadygrad.numerics.published_findings import Board


@pytest.fixture
def board() -> Board:
    return Board()
