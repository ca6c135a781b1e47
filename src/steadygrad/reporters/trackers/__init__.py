"""A run's readings for the tracker a person already uses: each through its own library, which is theirs to install.

A tracker is opened by name. Nothing of it is imported before that, and nothing is sent anywhere that the library would
not send by itself: W&B's offline mode and MLflow's tracking address are set where they always are.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ...records.errors import UsageError
from .tracker import Tracker

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""What a tracker is called here, and the package it needs."""


def open_tracker(name: str, *, run_dir: Path, title: str, config: dict[str, Any]) -> Tracker:
    """The tracker of that name, ready to be fed; one sentence if there is none or its package is not installed."""
    if name not in TRACKERS:
        raise UsageError(f"There is no tracker {name!r}: choose from {', '.join(TRACKERS)}.")
    try:
        module = import_module(f".{name}_tracker", __package__)
        tracker: Tracker = module.open(run_dir=run_dir, title=title, config=config)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != TRACKERS[name]:
            raise
        raise UsageError(f"Sending to {name} needs its package: pip install {TRACKERS[name]}.") from None
    return tracker
