"""A tracker with an open run hears of an incident through its own alerts; one without a run, or not imported, does not.

None of the trackers is needed here: small modules with the shape of the real ones stand in for them, and the tests at
the end use the real ones where they are installed.
"""

from __future__ import annotations

import contextvars
import enum
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import steadygrad as sg
from steadygrad.engine.record.notify import Notifier
from steadygrad.engine.record.tracker_alerts import open_trackers
from steadygrad.records import Action, Decision, Incident


class Level(enum.Enum):
    WARN = "warn"
    ERROR = "error"


class Run:
    """An open run that takes alerts."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []

    def alert(self, **said: Any) -> None:
        self.alerts.append(said)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("wandb")
    module.run = Run()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("trackio")
    module.AlertLevel = Level
    module.context_vars = SimpleNamespace(current_run=contextvars.ContextVar("current_run", default=None))
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The open run is known on the thread that opened it only, as in the real one."""
    module: Any = ModuleType("mlflow")
    here, module.tags = threading.local(), {}
    here.run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    module.active_run = lambda: getattr(here, "run", None)
    client = SimpleNamespace(set_tag=lambda run_id, key, value: module.tags.__setitem__((run_id, key), str(value)))
    module.MlflowClient = lambda: client
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


@pytest.fixture(autouse=True)
def no_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that another test imported has no business here; the fixtures put theirs in afterwards."""
    for name in ("wandb", "trackio", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def incident(*actions: Action, number: int = 3) -> Incident:
    return Incident(
        number=number,
        first_step=7,
        last_step=7,
        symptom="nan_loss",
        headline="the loss is nan",
        decision=Decision(step=7, actions=actions or (Action.SKIP,)),
    )


def told(target: Any, *incidents: Incident) -> Notifier:
    notifier = Notifier(target, run="runs/x")
    for each in incidents:
        notifier(each)
    notifier.close(60)
    return notifier


def test_a_guard_that_was_told_nothing_alerts_the_open_run(wandb: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.Guard(model, optimizer, lambda m, x: m(x).mean(), run_dir=tmp_path / "run", diagnose="off") as guard:
        guard.step(torch.ones(2, 2))
        guard.step(torch.full((2, 2), float("nan")))
    (alert,) = wandb.run.alerts
    assert alert["title"] == "steadygrad: nan_loss"
    assert alert["level"] == "WARN"
    assert "incident 1 at step 1" in alert["text"]


def test_an_attached_optimizer_alerts_the_open_run(wandb: Any) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.attach(optimizer, model=model):
        model(torch.full((2, 2), float("nan"))).mean().backward()
        optimizer.step()
    assert len(wandb.run.alerts) == 1


def test_a_halt_is_an_error_and_a_skip_a_warning(wandb: Any, trackio: Any) -> None:
    run = Run()
    token = trackio.context_vars.current_run.set(run)
    told(None, incident(Action.SKIP), incident(Action.SKIP, Action.HALT))
    trackio.context_vars.current_run.reset(token)
    assert [alert["level"] for alert in wandb.run.alerts] == ["WARN", "ERROR"]
    assert [alert["level"] for alert in run.alerts] == [Level.WARN, Level.ERROR]


def test_the_run_is_the_one_open_on_the_thread_that_trains(mlflow: Any, trackio: Any) -> None:
    run = Run()
    token = trackio.context_vars.current_run.set(run)
    told(None, incident(number=3), incident(number=4))
    trackio.context_vars.current_run.reset(token)
    assert len(run.alerts) == 2
    assert mlflow.tags["r1", "steady.incidents"] == "4"
    assert "incident 4 at step 7: the loss is nan (skip)" in mlflow.tags["r1", "steady.last_incident"]


def test_a_webhook_and_a_tracker_are_both_told(wandb: Any) -> None:
    got: list[Any] = []
    notifier = told(got.append, incident())
    assert (len(got), len(wandb.run.alerts)) == (1, 1)
    assert (notifier.delivered, notifier.failed) == (2, 0)


def test_with_false_nothing_is_notified(wandb: Any) -> None:
    assert told(False, incident()).delivered == 0
    assert wandb.run.alerts == []


def test_an_imported_tracker_without_a_run_is_left_alone(wandb: Any, trackio: Any, mlflow: Any) -> None:
    wandb.run, mlflow.active_run = None, lambda: None
    assert open_trackers() == {}


def test_nothing_is_imported_to_find_out() -> None:
    before = set(sys.modules)
    assert open_trackers() == {}
    assert not {"wandb", "trackio", "mlflow"} & (set(sys.modules) - before)


def test_a_module_of_that_name_with_another_shape_is_no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    for name in ("wandb", "trackio", "mlflow"):
        monkeypatch.setitem(sys.modules, name, Hostile(name))
    assert open_trackers() == {}


def test_a_tracker_that_fails_is_reported_once_and_stops_nothing(wandb: Any) -> None:
    def fails(**_: Any) -> None:
        raise ConnectionError("no route to it")

    wandb.run.alert = fails
    said: list[str] = []
    got: list[Any] = []
    notifier = Notifier(got.append, tell=said.append)
    notifier(incident())
    notifier(incident())
    notifier.close(60)
    assert len(got) == 2
    assert notifier.failed == 2
    (sentence,) = said
    assert "an alert of wandb could not be delivered (ConnectionError: no route to it)" in sentence


@pytest.mark.slow
def test_the_real_weights_and_biases_takes_the_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    sent: list[tuple[Any, ...]] = []
    run = module.init(project="p", mode="offline", dir=str(tmp_path))
    publish = run._interface.publish_alert
    monkeypatch.setattr(run._interface, "publish_alert", lambda *args: (sent.append(args), publish(*args)))
    notifier = told(None, incident())
    run.finish()
    assert (notifier.delivered, notifier.failed) == (1, 0)
    assert sent[0][0] == "steadygrad: nan_loss"
    assert sent[0][2] == "WARN"


@pytest.mark.slow
def test_the_real_trackio_takes_the_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    module = pytest.importorskip("trackio")
    monkeypatch.setitem(sys.modules, "trackio", module)
    run = module.init(project="p", embed=False)
    notifier = told(None, incident())
    run.finish()
    assert (notifier.delivered, notifier.failed) == (1, 0)
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    assert [entry["title"] for entry in storage.get_alerts("p")] == ["steadygrad: nan_loss"]


@pytest.mark.slow
def test_the_real_mlflow_keeps_the_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    module.set_tracking_uri((tmp_path / "store").as_uri())
    with module.start_run() as run:
        notifier = told(None, incident())
    assert (notifier.delivered, notifier.failed) == (1, 0)
    assert module.MlflowClient().get_run(run.info.run_id).data.tags["steady.incidents"] == "3"
