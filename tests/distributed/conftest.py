"""Ranks for the tests: forks of one process that has imported torch, with a file to meet at and no port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_launch import LIMIT_S, Ended, RunRanks, launch


@pytest.fixture(scope="session")
def nursery() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).parent / "rank_nursery.py"
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


@pytest.fixture
def run_ranks(nursery: subprocess.Popen[str], tmp_path: Path) -> RunRanks:
    """`run_ranks("scenario", world, **options)` runs it on that many ranks and says how each of them ended."""
    count = 0

    def run(
        scenario: str, world: int = 2, *, limit: float = LIMIT_S, folder_name: str | None = None, **options: Any
    ) -> list[Ended]:
        nonlocal count
        count += 1
        return launch(nursery, tmp_path / (folder_name or f"launch{count}"), scenario, world, options, limit)

    return run
