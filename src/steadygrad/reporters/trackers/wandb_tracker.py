"""Weights & Biases, through its own client: WANDB_MODE, WANDB_PROJECT and the login decide where things go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .tracker import PROJECT


class WandbTracker:
    """Steps travel as their own metric: W&B's counter only goes forward, and a resumed run's steps may not."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.place = run.url or str(run.dir)
        run.define_metric("steady/step")
        run.define_metric("steady/*", step_metric="steady/step")

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        self._run.log({**values, "steady/step": step, "steady/time": time})

    def words(self, step: int, time: float, title: str, text: str) -> None:
        self._run.alert(title=title, text=f"step {step}: {text}", level="WARN")

    def close(self) -> None:
        self._run.finish()


def open(*, run_dir: Path, title: str, config: dict[str, Any]) -> WandbTracker:
    """A separate run in the project WANDB_PROJECT names, else in "steadygrad"; its files go below the run."""
    import wandb

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return WandbTracker(wandb.init(project=project, name=title, dir=str(run_dir), config=config, reinit="create_new"))
