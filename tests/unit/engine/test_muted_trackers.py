"""What a program sends to its experiment tracker is sent once for each batch."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.recovery.reruns.muted_trackers import muted_trackers

SENT: SimpleQueue[Any] = SimpleQueue()


class Run:
    """A tracker's run, under the name of a well-known one."""

    def log(self, data: Any) -> str:
        SENT.put(data)
        return "sent"

    def finish(self) -> str:
        return "finished"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    module = types.ModuleType("wandb.sdk.wandb_run")
    module.Run = Run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb.sdk.wandb_run", module)
    original = Run.log
    yield Run()
    assert Run.log is original
    while not SENT.empty():
        SENT.get()


def test_a_refused_step_and_its_diagnosis_send_nothing_more(run: Run) -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        run.log({"a": 1})
        return model(batch).mean().square()

    model = nn.Linear(4, 1)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as guard:
        for step in range(12):
            batch = torch.randn(8, 4)
            if step == 6:
                batch[3, 1] = torch.nan
            guard.step(batch)
    assert guard.summary()["skipped"] == 1
    assert guard.incidents[0].diagnosis is not None
    assert SENT.qsize() == 12


def test_nested_and_in_one_thread_only(run: Run) -> None:
    answers: SimpleQueue[str] = SimpleQueue()
    with muted_trackers():
        with muted_trackers():
            assert run.log("inside") is None
        assert run.log("inside") is None
        assert run.finish() == "finished"
        other = threading.Thread(target=lambda: answers.put(run.log("other")))
        other.start()
        other.join()
    assert answers.get() == "sent"
    assert run.log("after") == "sent"
    assert SENT.qsize() == 2


def test_an_exception_inside_leaves_the_tracker_as_it_was(run: Run) -> None:
    with pytest.raises(ValueError, match="no"), muted_trackers():
        raise ValueError("no")
    assert run.log("after") == "sent"


def test_tensorboard_gets_one_point_for_each_batch(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    counted: SimpleQueue[int] = SimpleQueue()
    original = writer._get_file_writer
    writer._get_file_writer = lambda: (counted.put(1), original())[1]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        writer.add_scalar("loss", 1.0)
        return model(batch).mean().square()

    model = nn.Linear(4, 1)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as guard:
        for step in range(8):
            batch = torch.randn(8, 4)
            if step == 4:
                batch[3, 1] = torch.nan
            guard.step(batch)
    writer.close()
    assert guard.summary()["skipped"] == 1
    assert counted.qsize() <= 8 + 2  # and what closing it takes


def test_good_micro_batches_of_a_refused_window_are_heard_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        run.log({"a": 1})
        print("a batch")
        return model(batch).mean().square()

    model = nn.Linear(4, 1)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, accumulate=3, diagnose="off") as guard:
        for step in range(12):
            batch = torch.randn(8, 4)
            if step == 4:
                batch[3, 1] = torch.nan
            guard.step(batch)
    assert guard.summary()["skipped"] == 1
    assert SENT.qsize() == 12
    assert capsys.readouterr().out.splitlines() == ["a batch"] * 12
