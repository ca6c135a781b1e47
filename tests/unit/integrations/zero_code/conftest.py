"""A watch over this very process, taken off again after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "engine"))


@pytest.fixture
def watching() -> Iterator[Callable[..., Any]]:
    """Starts a watch as `steady run` would, with the settings given."""
    from steadygrad.integrations.zero_code.launch.run_options import RunOptions
    from steadygrad.integrations.zero_code.process_loop import ProcessLoop

    started: list[ProcessLoop] = []

    def start(**settings: Any) -> ProcessLoop:
        watch = ProcessLoop(RunOptions(**{"diagnose": "off", **settings}))
        watch.start()
        started.append(watch)
        return watch

    yield start
    for watch in reversed(started):  # a patch that lies below another one is not taken off
        watch.finish()
        watch.stop()
