"""MLflow, through its own client: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME decide where things go."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .tracker import PROJECT

_ALLOWED = re.compile(r"[^\w\-. /]")
MAX_BATCH = 1000  # what one call of log_batch takes
MAX_VALUE = 6000


class MlflowTracker:
    """Numbers gather until a call is full: a call for each would be slow on a server far away."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._waiting: list[Any] = []
        self.place = f"MLflow run {run_id}"

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        moment = int(1000 * time)
        self._waiting += [Metric(key_of(name), value, moment, step) for name, value in values.items()]
        while len(self._waiting) >= MAX_BATCH:
            self._send()

    def words(self, step: int, time: float, title: str, text: str) -> None:
        self._client.set_tag(self._run_id, key_of(f"{title} step {step}"), text[:MAX_VALUE])

    def close(self) -> None:
        while self._waiting:
            self._send()
        self._client.set_terminated(self._run_id)

    def _send(self) -> None:
        now, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._client.log_batch(self._run_id, metrics=now)


def key_of(name: str) -> str:
    """A name MLflow takes: letters, digits, and a few signs."""
    return _ALLOWED.sub("_", name)[:240]


def open(*, run_dir: Path, title: str, config: dict[str, Any]) -> MlflowTracker:
    """A separate run in the experiment MLFLOW_EXPERIMENT_NAME names, else in "steadygrad"."""
    from mlflow import MlflowClient
    from mlflow.entities import Param, RunTag

    client = MlflowClient()
    wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    known = client.get_experiment_by_name(wanted)
    experiment = known.experiment_id if known is not None else client.create_experiment(wanted)
    run_id = client.create_run(experiment, run_name=title).info.run_id
    params = [Param(key_of(key), str(value)[:MAX_VALUE]) for key, value in config.items()]
    client.log_batch(run_id, params=params[:100], tags=[RunTag("steady.run_dir", str(run_dir)[:MAX_VALUE])])
    return MlflowTracker(client, run_id)
