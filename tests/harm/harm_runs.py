"""Runs a program text under `steady run`, or alone, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.journal import read_incidents
from steadygrad.records import Incident
from steadygrad.records.errors import JournalError


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what was reported of it."""

    code: int
    stdout: str
    stderr: str
    incidents: list[Incident]
    folder: Path

    @property
    def said(self) -> str:
        return self.stdout + self.stderr + "".join(str(incident) for incident in self.incidents)

    def check_unhurt(self) -> None:
        """It ended well, and nothing of ours was thrown at the user."""
        assert self.code == 0, self.stderr[-1500:]
        assert "Traceback" not in self.stderr


def environment() -> dict[str, str]:
    source = str(Path(sg.__file__).resolve().parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _run(words: list[str], text: str, folder: Path) -> Ended:
    program = folder / "program.py"
    program.write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, *words, str(program)], capture_output=True, text=True, cwd=folder, env=environment(),
        timeout=240,
    )  # fmt: skip
    try:
        incidents = list(read_incidents(folder / "run"))
    except JournalError:
        incidents = []
    return Ended(done.returncode, done.stdout, done.stderr, incidents, folder)


def under_steady_run(text: str, folder: Path, *options: str) -> Ended:
    """This program under `steady run`, with the defaults of a user."""
    return _run(["-m", "steadygrad.commands", "run", *options, "--run-dir", str(folder / "run")], text, folder)


def alone(text: str, folder: Path) -> Ended:
    """This program in a process of its own, guarded by nothing but itself."""
    return _run([], text, folder)


def printed_here(text: str) -> str:
    """What this program prints when it runs in this process: a reference that needs no other process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(dedent(text), "program.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


def some_slow(names: Iterable[str], fast: int) -> list[Any]:
    """The first so many as they are, the others marked slow: each starts a process."""
    return [name if place < fast else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(names)]


def finite(things: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(each.detach()).all()) for each in things)


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def tower(*, width: int = 16, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def pairs(count: int, *, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 8, generator=generator), torch.randn(16, 1, generator=generator)) for _ in range(count)]


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).pow(2).mean()
