"""The path of a healthy step through the package is short: few files, few calls between them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import steadygrad as sg
from steadygrad.detect.loop import loop_recorder

HERE = str(Path(sg.__file__).parent)
MOST_FILES, MOST_CALLS = 30, 63


def calls_between_files(step: Any) -> tuple[set[str], Counter[tuple[str, str]]]:
    files: set[str] = set()
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name, back = frame.f_code.co_filename, frame.f_back
        if event != "call" or not name.startswith(HERE) or frame.f_code.co_name.startswith("<"):
            return
        if "/numerics/" in name:  # asked only where a program has loaded it, as another test may have
            return
        files.add(name)
        caller = back.f_code.co_filename if back is not None else ""
        if caller.startswith(HERE) and caller != name:
            calls[Path(caller).name, f"{Path(name).name}:{frame.f_code.co_name}"] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return files, calls


def test_a_healthy_step_passes_few_files_and_makes_few_calls_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "steadygrad.numerics.published_findings", raising=False)
    # Another test of this process may have compiled something, and then hooks stay where they are.
    monkeypatch.setattr(loop_recorder, "_something_is_compiled", lambda: False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(4, 8), torch.randn(4, 1)

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    guard = sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, run_dir=tmp_path / "run")
    for _ in range(233):
        guard.step((inputs, targets))
    steps = [calls_between_files(lambda: guard.step((inputs, targets))) for _ in range(8)]
    guard.close()
    # One that sets a record, or is sampled, makes some more.
    files, calls = min(steps, key=lambda step: step[1].total())
    assert len(files) <= MOST_FILES, sorted(files)
    assert calls.total() <= MOST_CALLS, calls
