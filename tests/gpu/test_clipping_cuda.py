"""Under `steady run` on a GPU the host is told the norms beside clipping, not behind it: with the same bits, for
every kind of loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from steadygrad.integrations.zero_code.launch.run_options import RunOptions
from steadygrad.journal import read_incidents, read_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PROGRAM = """
import sys, torch
from torch import nn
kind, bad, out = sys.argv[1:4]
torch.manual_seed(1)
# Large enough for clipping to take longer than all that is queued around it.
model = nn.Sequential(nn.Linear(16, 4096), nn.Tanh(), nn.Linear(4096, 4096), nn.Linear(4096, 1)).cuda()
dtype = torch.float64 if kind == "wide" else torch.float32
model.to(dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
generator = torch.Generator().manual_seed(3)
data = [torch.randn(8, 17, generator=generator).cuda().to(dtype) for _ in range(24)]
if bad == "bad":
    data[9][2, 16] = float("nan")
side = torch.cuda.Stream() if kind == "stream" else torch.cuda.current_stream()
side.wait_stream(torch.cuda.default_stream())
losses = []
with torch.cuda.stream(side):
    for number, batch in enumerate(data):
        if bad == "left out" and number == 9:
            continue
        optimizer.zero_grad()
        parts = batch.chunk(2) if kind == "accumulated" else [batch]
        for part in parts:
            loss = (model(part[:, :16]) - part[:, 16:]).pow(2).mean()
            loss.backward()
            losses.append(loss.detach())
        if kind != "in turn" or number % 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
torch.cuda.synchronize()
found = [p.detach().cpu() for p in model.parameters()]
found += [value.cpu() for p in model.parameters() for value in optimizer.state[p].values()]
torch.save([found, torch.stack(losses).cpu()], out)
"""
KINDS = ["plain", "accumulated", "in turn", "stream", "wide"]


def run(folder: Path, kind: str, bad: str, *, guarded: bool) -> tuple[list[Tensor], Tensor]:
    (folder / "program.py").write_text(PROGRAM)
    environment = dict(os.environ)
    if guarded:
        environment = RunOptions(run_dir=str(folder / "run")).environment(environment)
    out = folder / ("guarded.pt" if guarded else "plain.pt")
    command = [sys.executable, str(folder / "program.py"), kind, bad, str(out)]
    subprocess.run(command, env=environment, check=True, timeout=200, cwd=folder)
    weights, losses = torch.load(out, weights_only=True)
    return weights, losses


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_run_that_clips_has_the_bits_and_the_losses_of_the_plain_one(kind: str, tmp_path: Path) -> None:
    plain, losses = run(tmp_path, kind, "good", guarded=False)
    guarded, _ = run(tmp_path, kind, "good", guarded=True)
    assert all(map(torch.equal, plain, guarded))
    recorded = [row.loss for row in read_steps(tmp_path / "run")]
    assert len(recorded) == 24
    expected = losses.view(24, -1).sum(1)
    assert torch.allclose(torch.tensor(recorded, dtype=expected.dtype), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_batch_of_a_run_that_clips_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    without, _ = run(tmp_path, kind, "left out", guarded=False)
    guarded, _ = run(tmp_path, kind, "bad", guarded=True)
    assert all(map(torch.equal, without, guarded))
    assert [incident.first_step for incident in read_incidents(tmp_path / "run")] == [9]
