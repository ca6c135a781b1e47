"""Runs that a real guard wrote on a tiny model, and ways to spoil a copy of one."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import steadygrad as sg
from steadygrad.commands import main
from steadygrad.journal.steps.ipc_frames import RECORD_BATCH, frames

BAD_STEPS = (20, 41)
NUM_STEPS = 60
HOSTILE = "=cmd|' /C calc'!A0 \x1b[2J <script>alert(1)</script>"
Call = Callable[..., tuple[int, str, str]]


def train(
    where: Path, *, steps: int = NUM_STEPS, bad: tuple[int, ...] = BAD_STEPS, one_term: bool = False, **options: Any
) -> Path:
    """A linear model that learns, with a NaN in the batches named, under a guard."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    truth = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])

    def loss_fn(model: torch.nn.Module, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        error = (model(batch["x"]) - batch["x"] @ truth).pow(2).mean()
        penalty = 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        if one_term:
            return {"loss": error}
        return {"loss": error + penalty, "fit": error, "penalty": penalty}

    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    settings: dict[str, Any] = {"max_grad_norm": 1.0, "diagnose": "off", "capsule": "off"} | options
    with sg.Guard(model, optimizer, loss_fn, run_dir=where, batch_key=lambda batch: batch["key"], **settings) as guard:
        for index in range(steps):
            x = torch.randn(8, 4)
            if index in bad:
                x[2, 1] = math.nan
            guard.step({"x": x, "key": HOSTILE if index == BAD_STEPS[0] else f"batch-{index}"})
    return where


def copied(run: Path, where: Path) -> Path:
    shutil.copytree(run, where)
    return where


def newer(run: Path) -> Path:
    """The run as a later version of steadygrad might write it."""
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | {"version": 99}))
    return run


def torn(run: Path) -> Path:
    """The run with half a record more at the end of its steps, as a kill leaves it."""
    (segment,) = (run / "steps").iterdir()
    data = segment.read_bytes()
    whole = [frame for frame in frames(data) if frame.kind == RECORD_BATCH]
    last = data[whole[-1].start : whole[-1].end]
    segment.write_bytes(data[: whole[-1].end] + last[: len(last) // 2])
    return run


def make_call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `steady` in this process: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steady", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    monkeypatch.setenv("COLUMNS", "200")
    return run


def forbid(monkeypatch: pytest.MonkeyPatch, forbidden: Path) -> None:
    """Root may read everything, so the refusal of the system is played for one file."""
    true_open = os.open

    def guarded(name: Any, *rest: Any, **more: Any) -> int:
        if str(name) == str(forbidden):
            raise PermissionError(13, "Permission denied", str(name))
        return true_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", guarded)


def one_sentence(answer: tuple[int, str, str], *words: str) -> None:
    """Exit code 2, nothing on standard output, one line of words on standard error."""
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("steady: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
