"""Shared by all tests: one thread a process, because they run side by side, and quiet logs."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import settings

# The same examples everywhere, so that a change is judged by what it changed; `--hypothesis-profile=explore` looks
# for new ones.
settings.register_profile("fixed", derandomize=True, database=None)
settings.register_profile("explore")
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _one_thread_and_fixed_seeds() -> None:
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
    random.seed(0)
    return


@pytest.fixture(autouse=True)
def _replayable_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asserted of an acknowledgement must not depend on how busy this machine's disk is."""
    monkeypatch.setattr("steadygrad.journal.journal._WAIT_S", 60.0)


@pytest.fixture(autouse=True)
def _slow_machines_diagnose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asserted of a diagnosis must not depend on how busy this machine is."""
    monkeypatch.setenv("STEADYGRAD_DIAGNOSIS_SECONDS", "300")
