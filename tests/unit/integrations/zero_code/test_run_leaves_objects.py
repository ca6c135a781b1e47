"""What a program counts, collects and draws is after a refused step and its diagnosis as in the plain run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, random
import numpy as np
import torch
from torch import nn

CALLS = 0
class Counted:
    made = 0
    def __init__(self):
        self.number = 0

class Busy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.counted, self.seen = nn.Linear(4, 1), Counted(), []
        self.queue, self.torchs = torch.zeros(8), torch.Generator().manual_seed(0)
        self.pythons, self.numpys = random.Random(0), np.random.default_rng(0)
    def forward(self, x):
        self.seen.append(1)
        self.counted.number += 1
        Counted.made += 1
        self.pythons.random(), self.numpys.random(), torch.rand(1, generator=self.torchs)
        with torch.no_grad():
            self.queue[self.counted.number % 8] = float(self.counted.number)
        return self.layer(x)

torch.manual_seed(0)
model = Busy()
losses, own, noise = [], torch.zeros(3), torch.Generator().manual_seed(1)
def loss_of(batch):
    global CALLS
    CALLS += 1
    losses.append(0.0)
    torch.rand(1, generator=noise)
    own.add_(1.0)
    return model(batch).mean().square()

g = torch.Generator().manual_seed(3)
batches = [torch.randn(8, 4, generator=g) for _ in range(20)]
batches[10][3, 1] = float("nan")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    loss_of(batch).backward()
    optimizer.step()
    optimizer.zero_grad()
drawn = [torch.rand(1, generator=model.torchs).item(), torch.rand(1, generator=noise).item(), model.pythons.random()]
print("STATE", json.dumps([CALLS, Counted.made, model.counted.number, len(model.seen), len(losses), own.tolist(),
                           model.queue.tolist(), drawn, model.numpys.random()]))
"""


def test_a_refused_step_and_its_diagnosis_leave_what_the_program_counts_collects_and_draws(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def state(*before: str) -> tuple[str, str]:
        command = [sys.executable, *before, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("STATE")]
        return line, done.stderr + done.stdout

    plain, _ = state()
    guarded, said = state("-m", "steadygrad.commands", "run", "--run-dir", str(tmp_path / "run"))
    assert "1 refused" in said
    assert "DX" in said  # it was diagnosed
    assert guarded == plain
