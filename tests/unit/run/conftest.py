"""A watch over this very process, taken off again after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "guard"))


@pytest.fixture
def watching() -> Iterator[Callable[..., Any]]:
    """Starts a watch as `steady run` would, with the settings given."""
    from steadygrad.integrations.zero_code.settings import Settings
    from steadygrad.integrations.zero_code.watch import Watch

    started: list[Watch] = []

    def start(**settings: Any) -> Watch:
        watch = Watch(Settings(**{"diagnose": "off", **settings}))
        watch.start()
        started.append(watch)
        return watch

    yield start
    for watch in started:
        watch.finish()
        watch.stop()
