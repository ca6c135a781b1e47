"""What is said of the weights at the end of a program is true of all weights that are there then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

BEGIN = """
import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(12, 8, 4)
nan = float("nan")

def fit(model, optimizer):
    for batch in data:
        loss = (model(batch) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model = nn.Linear(4, 1)
"""
BAD = {
    "written after the training": """
fit(model, torch.optim.Adam(model.parameters()))
model.weight.data[0, 1] = nan
""",
    "a buffer of a training that has ended": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("seen", torch.ones(4))

    def forward(self, batch):
        self.seen = self.seen * 1e6
        return self.linear(batch)

model = Net()
fit(model, torch.optim.Adam(model.parameters()))
""",
    "an average": """
optimizer = torch.optim.Adam(model.parameters())
average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, number: old * nan)
fit(model, optimizer)
average.update_parameters(model)
average.update_parameters(model)
""",
    "updated by the program itself": """
other = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
fit(model, optimizer)
gradients = torch.autograd.grad((other(data[0]) * nan).mean(), list(other.parameters()))
with torch.no_grad():
    torch._foreach_add_(list(other.parameters()), gradients, alpha=-0.1)
""",
}
GOOD = {
    "a mask": """
model.register_parameter("mask", nn.Parameter(torch.full((3,), float("-inf")), requires_grad=False))
fit(model, torch.optim.Adam([model.weight, model.bias]))
""",
    "a place for values to come": """
model.register_buffer("later", torch.full((3,), nan))
fit(model, torch.optim.Adam(model.parameters()))
""",
    "gone by then": """
def other():
    broken = nn.Linear(4, 1)
    broken.weight.data.fill_(nan)

fit(model, torch.optim.Adam(model.parameters()))
other()
""",
}


def told(text: str, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(BEGIN + text)
    command = [sys.executable, "-m", "steadygrad.commands", "run", "--json", "--run-dir", str(folder / "run")]
    ended = subprocess.run(
        [*command, str(folder / "train.py")], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(next(line for line in ended.stderr.splitlines() if line.startswith("{")))
    return found


@pytest.mark.parametrize("kind", BAD)
def test_weights_that_are_not_finite_at_the_end_are_named(kind: str, tmp_path: Path) -> None:
    assert told(BAD[kind], tmp_path)["final_state"].startswith("non-finite: ")


@pytest.mark.parametrize("kind", GOOD)
def test_what_is_not_finite_on_purpose_or_gone_is_not_reported(kind: str, tmp_path: Path) -> None:
    assert told(GOOD[kind], tmp_path)["final_state"] == "finite"


def test_weights_of_a_model_from_before_the_run_are_not_part_of_it(watching: Any) -> None:
    earlier = nn.Linear(3, 1)
    nn.init.constant_(earlier.weight, float("nan"))
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
    assert watch.finish()["final_state"] == "finite"
