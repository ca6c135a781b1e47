"""While the program records a CUDA graph our hooks and patches only call the original; the capture itself is in
`tests/gpu/test_capture_cuda.py`."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.tensors import graph_capture
from steadygrad.engine.state.forward_state import ForwardState
from steadygrad.records.errors import UsageError


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`capture(True)`: from here on a graph is recorded, as far as torch says."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on)

    return switch


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


def test_nothing_of_ours_runs_while_a_graph_is_recorded_and_that_is_said_once(
    capture: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    with caplog.at_level(logging.WARNING), sg.attach(optimizer, model=model) as guard:
        for _ in range(3):
            update(model, optimizer, x)
        assert not guard.summary()["not_checked"]
        taken: list[int] = []
        monkeypatch.setattr(ForwardState, "take", lambda self: taken.append(1))
        monkeypatch.setattr(ForwardState, "notice", lambda self: taken.append(1))
        capture(True)
        for _ in range(2):
            update(model, optimizer, x)
        capture(False)
        monkeypatch.undo()
        assert not taken
        summary = guard.summary()
    assert summary["steps"] == summary["applied"] == 3
    assert summary["guard_faults"] == {}
    assert summary["not_checked"] == graph_capture.NOT_CHECKED
    assert caplog.text.count(graph_capture.NOT_CHECKED) == 1


def test_a_loop_that_goes_on_after_a_capture_is_guarded_and_no_cleared_gradient_is_called_a_skip(capture: Any) -> None:
    model, optimizer = make()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    with sg.attach(optimizer, model=model) as guard:
        update(model, optimizer, x)
        capture(True)
        update(model, optimizer, x)
        capture(False)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(math.nan)  # as a replay of the graph may leave it
        update(model, optimizer, x)
        update(model, optimizer, torch.full((8, 4), math.nan))
        update(model, optimizer, x)
        summary = guard.summary()
    assert summary["skipped_by_program"] == 0
    assert summary["skipped"] == 1
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_guards_step_in_a_capture_is_refused_before_anything_is_touched(capture: Any) -> None:
    model, optimizer = make()
    with sg.Guard(model, optimizer, lambda m, x: m(x).pow(2).mean()) as guard:
        guard.step(torch.ones(8, 4))
        rng = torch.get_rng_state()
        capture(True)
        with pytest.raises(UsageError, match="while a CUDA graph is captured"):
            guard.step(torch.ones(8, 4))
        model(torch.ones(8, 4))  # the hook that settles the last step does nothing either
        capture(False)
        torch.set_rng_state(rng)
        assert guard.batches_seen == 1
        assert guard.step(torch.ones(8, 4)).applied
        assert guard.summary()["guard_faults"] == {}
