"""The marker that ties a test to a cell of docs/guarantees.md, and the end of the ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "guarantee(number, entry, cell): what this test shows at an entry point")


@pytest.fixture(autouse=True, scope="session")
def _ranks_end() -> Iterator[None]:
    yield
    from drivers import stop_ranks

    stop_ranks()
