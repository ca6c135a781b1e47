"""trackio, which keeps runs in a local database unless TRACKIO_SPACE_ID or the like says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .tracker import PROJECT


class TrackioTracker:
    """One run of the project "steadygrad"."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.place = f"trackio project {PROJECT}, run {run.name}"

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def words(self, step: int, time: float, title: str, text: str) -> None:
        import trackio

        self._run.log({title: trackio.Markdown(text)}, step=step)

    def close(self) -> None:
        self._run.finish()


def open(*, run_dir: Path, title: str, config: dict[str, Any]) -> TrackioTracker:
    """A separate run, without trackio's readings of the machine: they are of the time of sending."""
    import trackio

    run = trackio.init(project=PROJECT, name=title, config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return TrackioTracker(run)
