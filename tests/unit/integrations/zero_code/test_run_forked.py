"""Trainings in forked children of a guarded program: refused and reported there as anywhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import multiprocessing, os, sys
import torch

def train(bad):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        batch = torch.arange(12.0).reshape(4, 3).sin() + step
        if bad and step == 3:
            if "omit" in sys.argv:
                continue
            batch[1, 1] = torch.nan
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()], torch.get_rng_state().sum().item()

train(bad=False)
pool = multiprocessing.get_context("fork").Pool(1)
print(pool.map(train, [True]))
pool.terminate() if "terminate" in sys.argv else pool.close()
pool.join()
if os.fork() == 0:
    print(train(True))
    sys.exit(0)
os.wait()
"""


def run(folder: Path, *arguments: str, guarded: bool) -> tuple[str, dict[str, Any]]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    ours = ["-m", "steadygrad.commands", "run", "--json", "--run-dir", str(folder / "run"), "--diagnose", "off"]
    done = subprocess.run(
        [sys.executable, *(ours if guarded else []), str(program), *arguments],
        capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONUNBUFFERED": "1"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1]) if guarded else {}


def test_a_forked_child_refuses_and_reports_its_bad_batch(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, "omit", guarded=False)
    printed, told = run(tmp_path, guarded=True)
    assert printed == expected
    assert (told["steps"], told["applied"], told["skipped"]) == (18, 16, 2)
    assert told["not_checked"] == []


def test_a_worker_that_was_terminated_is_not_passed_over(tmp_path: Path) -> None:
    _, told = run(tmp_path, "terminate", guarded=True)
    assert (told["steps"], told["skipped"]) == (12, 1)
    assert len(told["not_checked"]) == 1
    assert "a process that trained ended without a report" in told["not_checked"][0]
