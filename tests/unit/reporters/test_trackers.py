"""Readings for TensorBoard, W&B, MLflow and trackio, each through its real library where it is installed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from made_runs import CLOSING, Call, hostile_run, write_long_run

from steadygrad.journal import Journal
from steadygrad.records import StepRecord
from steadygrad.records.errors import UsageError
from steadygrad.reporters.trackers import TRACKERS, open_tracker
from steadygrad.reporters.trackers.feed import Feed, in_words


class Notebook:
    """A tracker that remembers what it was given."""

    place = "memory"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.told: list[tuple[int, str]] = []
        self.closed = False

    def numbers(self, step: int, time: float, values: dict[str, float]) -> None:
        self.rows.append((step, values))

    def words(self, step: int, time: float, title: str, text: str) -> None:
        self.told.append((step, text))

    def close(self) -> None:
        self.closed = True


def test_a_tracker_gets_the_loss_as_it_was_and_the_share_of_refused_steps(long_run: Path) -> None:
    notebook = Notebook()
    feed = Feed(long_run, [notebook])
    feed.poll()
    feed.close()
    assert notebook.closed
    assert [step for step, _ in notebook.rows] == list(range(5000))
    assert math.isnan(notebook.rows[812][1]["steady/loss"])
    assert notebook.rows[811][1]["steady/refused"] == 0
    assert notebook.rows[4999][1]["steady/refused"] == 4
    assert notebook.rows[4999][1]["steady/refused_fraction"] == pytest.approx(4 / 5000)
    assert {"steady/terms/ce", "steady/terms/kd", "steady/loss_scale", "steady/lr"} <= set(notebook.rows[3][1])
    assert [step for step, _ in notebook.told] == [812, 2400, 2401, 4100]
    assert "range of float16 in layers.1.attn. Verified remedy: layers.1.attn in float32." in notebook.told[0][1]


def test_norms_are_sent_by_layer_at_the_steps_that_have_them(long_run: Path) -> None:
    notebook = Notebook()
    Feed(long_run, [notebook]).poll()
    with_norms = [step for step, values in notebook.rows if any(name.startswith("steady/norms/") for name in values)]
    assert with_norms[:4] == [0, 10, 20, 30]
    layers = {name for name in notebook.rows[10][1] if name.startswith("steady/norms/")}
    assert "steady/norms/layers.1.attn" in layers
    assert 1 < len(layers) <= 40
    assert math.isnan(notebook.rows[812][1]["steady/norms/layers.1.attn"])


def test_a_run_that_goes_on_is_sent_as_it_grows_and_nothing_twice(tmp_path: Path) -> None:
    notebook = Notebook()
    with Journal(tmp_path / "run") as journal:
        feed = Feed(tmp_path / "run", [notebook])
        for step in range(9):
            journal.step(StepRecord(run="r", step=step, loss=float(step), grad_norm=1.0))
            assert journal.flush(60.0)
            if step % 3 == 2:
                assert feed.poll().state.word == "running"
                assert len(notebook.rows) == step + 1
    assert feed.poll().state.word == "ended"
    assert [values["steady/loss"] for _, values in notebook.rows] == [float(step) for step in range(9)]


def test_a_scale_overflow_is_no_refused_batch(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.step(StepRecord(run="r", step=0, loss=1.0, grad_norm=1.0))
        journal.step(StepRecord(run="r", step=1, loss=1.0, grad_norm=math.inf, applied=False, flags=("SY304",)))
    notebook = Notebook()
    Feed(tmp_path / "run", [notebook]).poll()
    assert [values["steady/refused_fraction"] for _, values in notebook.rows] == [0.0, 0.0]


def test_hostile_names_reach_a_tracker_without_control_characters(tmp_path: Path) -> None:
    notebook = Notebook()
    Feed(hostile_run(tmp_path / "run"), [notebook]).poll()
    names = {name for _, values in notebook.rows for name in values}
    assert f"steady/terms/{CLOSING}" in names
    assert not any(character in name for name in names for character in "\x1b\u202e\u2028")


def test_an_unknown_tracker_and_a_missing_package_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str) -> object:
        return open_tracker(name, run_dir=tmp_path, title="t", config={})

    with pytest.raises(
        UsageError, match="There is no tracker 'excel': choose from tensorboard, wandb, mlflow, trackio"
    ):
        opened("excel")
    for name, package in TRACKERS.items():
        monkeypatch.setitem(sys.modules, package, None)
        for module in [module for module in sys.modules if module.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, module)
        with pytest.raises(UsageError, match=f"Sending to {name} needs its package: pip install {package}"):
            opened(name)


def test_tensorboard_reads_back_what_was_sent(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_long_run(tmp_path / "run", steps=50, tensors=4, bad=(30,))
    code, out, _ = call("watch", run, "--to", "tensorboard", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["steps"], told["incidents"]) == (50, 1)
    assert told["sent_to"]["tensorboard"] == str(run / "tensorboard" / "0001")
    events = EventAccumulator(told["sent_to"]["tensorboard"], size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    losses = events.Scalars("steady/loss")
    assert [event.step for event in losses] == list(range(50))
    assert math.isnan(losses[30].value)
    assert events.Scalars("steady/refused")[-1].value == 1
    (incident,) = events.Tensors("steady/incident/text_summary")
    assert b"left the range of float16 in layers.1.attn" in incident.tensor_proto.string_val[0]
    assert json.loads(call("watch", run, "--to", "tensorboard", "--json")[1])["sent_to"]["tensorboard"].endswith("0002")


def test_wandb_keeps_a_run_offline(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = write_long_run(tmp_path / "run", steps=20, tensors=2, bad=(10,))
    code, out, _ = call("watch", run, "--to", "wandb", "--json")
    assert code == 0
    assert json.loads(out[out.index("{") :])["steps"] == 20
    (kept,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    assert kept.stat().st_size > 0


def test_mlflow_keeps_every_metric(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy", reason="MLflow keeps runs in a database")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    run = write_long_run(tmp_path / "run", steps=20, tensors=2, bad=(10,))
    code, out, _ = call("watch", run, "--to", "mlflow", "--json")
    assert code == 0
    place = json.loads(out[out.index("{") :])["sent_to"]["mlflow"]
    history = MlflowClient().get_metric_history(place.removeprefix("MLflow run "), "steady/loss")
    assert sorted(entry.step for entry in history) == list(range(20))


def test_trackio_keeps_a_run_locally(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    run = write_long_run(tmp_path / "run", steps=20, tensors=2, bad=(10,))
    code, out, _ = call("watch", run, "--to", "trackio", "--json")
    assert code == 0
    assert json.loads(out[out.index("{\n") :])["steps"] == 20
    assert [kept.name for kept in trackio.Api().runs("steadygrad")] == ["run"]


def test_an_incident_in_words_is_short(long_run: Path) -> None:
    from steadygrad.journal import read_incidents

    first, *_, last = read_incidents(long_run)
    assert in_words(first).startswith("Incident 1, step 812: the loss is nan. Cause: ")
    assert in_words(last) == "Incident 4, step 4100: the loss is nan."
