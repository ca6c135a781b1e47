"""The alerts of experiment trackers: whoever trains with a run open in one hears of an incident there.

Only a tracker that the program has imported itself and that has a run open in this process is told. Nothing is
imported here and no run is ever opened. Which run is open is looked up on the thread that trains, because MLflow and
Trackio keep it for each thread; the telling itself, which may talk to a server, is left to another thread.

- Weights & Biases: `run.alert`, which goes to Slack or mail as the user has set up there.
- Trackio: `run.alert`, where the version has it.
- MLflow has no alerts: two tags of the run, `steady.incidents` and `steady.last_incident`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...detect.tensors.foreign_objects import getattr

Alert = Callable[[str, str, int, bool], object]
"""Tells one tracker: title, text, the incident's number, and whether training was halted."""

_LONGEST_TITLE = 63  # Weights & Biases takes less than 64 characters
_LONGEST_TAG = 500


def open_trackers() -> dict[str, Alert]:
    """How to reach each tracker that has a run open now, by its name. Looks up a few attributes; never raises."""
    found: dict[str, Alert] = {}
    for name, look in (("wandb", _wandb), ("trackio", _trackio), ("mlflow", _mlflow)):
        module = sys.modules.get(name)
        try:
            alert = look(module) if module is not None else None
        except Exception:  # another version, or a module that is only half imported: then it has no run for us
            alert = None
        if alert is not None:
            found[name] = alert
    return found


def _wandb(module: Any) -> Alert | None:
    run = getattr(module, "run", None)
    if not callable(getattr(run, "alert", None)):
        return None

    def tell(title: str, text: str, _number: int, halted: bool) -> None:
        # Alerts of one title are sent once a minute at most: Weights & Biases sees to that itself.
        run.alert(title=title[:_LONGEST_TITLE], text=text, level="ERROR" if halted else "WARN")  # type: ignore[union-attr]

    return tell


def _trackio(module: Any) -> Alert | None:
    run = module.context_vars.current_run.get()
    if not callable(getattr(run, "alert", None)):
        return None
    levels = module.AlertLevel

    def tell(title: str, text: str, _number: int, halted: bool) -> None:
        run.alert(title=title, text=text, level=levels.ERROR if halted else levels.WARN)

    return tell


def _mlflow(module: Any) -> Alert | None:
    run = module.active_run()
    if run is None:
        return None
    run_id, client = run.info.run_id, module.MlflowClient()

    def tell(_title: str, text: str, number: int, _halted: bool) -> None:
        client.set_tag(run_id, "steady.incidents", number)
        client.set_tag(run_id, "steady.last_incident", text[:_LONGEST_TAG])

    return tell
