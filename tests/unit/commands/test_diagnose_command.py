"""`steady diagnose` shows what the guard found out on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import steadygrad as sg


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)

    def loss_fn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.log(model(batch).abs().mean(1)).mean()

    where = tmp_path_factory.mktemp("runs") / "log"
    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-3), loss_fn, run_dir=where) as guard:
        for index in range(5):
            batch = torch.randn(4, 3)
            if index == 3:
                with torch.no_grad():
                    # A row the model maps to exactly nought: the logarithm has nothing to hold on to.
                    model.bias.zero_()
                batch[2] = 0.0
            guard.step(batch)
    return where


def steady(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "steadygrad.commands", *arguments], capture_output=True, text=True)


def test_the_newest_incident_of_a_run_is_explained_in_words(run: Path) -> None:
    answer = steady("diagnose", str(run))
    assert answer.returncode == 1
    assert "log_zero" in answer.stdout
    assert "test_diagnose_command.py" in answer.stdout
    assert "torch.log(" in answer.stdout


def test_json_carries_the_same_as_data(run: Path) -> None:
    answer = steady("diagnose", str(run / "incidents" / "0001"), "--json")
    data = json.loads(answer.stdout)
    assert data["diagnosis"]["cause"]["slug"] == "log_zero"
    assert data["diagnosis"]["origin"]["op"] == "log"
    assert data["diagnosis"]["rows"] == [2]
    found = sg.diagnose(run)
    assert found.cause is not None
    assert found.cause.slug == "log_zero"


def test_what_is_not_there_gets_one_sentence(run: Path, tmp_path: Path) -> None:
    answer = steady("diagnose", str(run / "incidents" / "0077"))
    assert answer.returncode == 2
    assert "holds no incident" in answer.stderr
    assert "Traceback" not in answer.stderr
    answer = steady("diagnose", str(tmp_path))
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1


def test_an_incident_of_an_attached_optimizer_names_the_command_that_diagnoses(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.attach(optimizer, model=model, run_dir=tmp_path / "run"):
        model(torch.full((4, 3), float("nan"))).mean().backward()
        optimizer.step()
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**said, "command": ["gan.py", "--steps", "3"]}))
    answer = steady("diagnose", str(tmp_path / "run"))
    assert "not diagnosed" in answer.stdout
    assert "steady run gan.py --steps 3" in answer.stdout
