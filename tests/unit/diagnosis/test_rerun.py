"""A capsule replayed in the program that was running: shown first, and taken over at its first guarded step."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.commands import main
from steadygrad.diagnosis.capsule.manifest import checksums_of
from steadygrad.diagnosis.capsule.recorded_program import program_of
from steadygrad.diagnosis.capsule.replay_parent import rerun
from steadygrad.records.errors import CapsuleError, UsageError

SCRIPT = """
import sys
import torch
import steadygrad as sg
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[2]))
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Tanh())
noise = torch.Generator().manual_seed(0)


def loss_fn(model, batch):
    hidden = (model(batch["x"]) * batch["mask"]).sum(1)
    return (hidden / batch["mask"].sum(1)).pow(2).mean() + torch.rand((), generator=noise)


extra = {"noise": (noise.get_state, noise.set_state)}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with sg.Guard(model, optimizer, loss_fn, run_dir=sys.argv[1], extra_state=extra, diagnose="origin") as guard:
    for number in range(6):
        batch = {"x": torch.randn(5, 4), "mask": torch.ones(5, 4)}
        if number == 4:
            batch["mask"][3] = 0
        guard.step(batch)
open("the-end-was-reached", "a").write("x")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a script and one run of it."""
    folder = tmp_path_factory.mktemp("rerun")
    (folder / "masked.py").write_text(SCRIPT)
    command = [sys.executable, "masked.py", "run", "7"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def capsule(home: Path) -> Path:
    return home / "run" / "incidents" / "0001"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_recorded_program_is_taken_over_at_its_first_guarded_step_and_writes_nothing(
    home: Path, capsule: Path, tmp_path: Path
) -> None:
    before = everything(home)
    command = [sys.executable, "-m", "steadygrad.commands", "replay", str(home / "run"), "--yes", "--json"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 1, answer.stderr
    assert "masked.py run 7" in answer.stderr  # said before it was run
    found = json.loads(answer.stdout)
    assert found["reproduced"] is True
    assert found["same_loss_bits"] is True
    assert found["step"] == 4
    assert found["diagnosis"]["cause"]["slug"] == "zero_division"
    assert found["diagnosis"]["rows"] == [3]
    assert found["diagnosis"]["origin"]["source"].startswith(str(home / "masked.py"))
    assert everything(home) == before  # no session, no step, and the script's last line did not run again
    assert before["the-end-was-reached"] == b"x"


def test_a_script_that_changed_is_refused_until_it_is_wanted_and_then_shows_whether_the_change_holds(
    home: Path, capsule: Path
) -> None:
    script, text = home / "masked.py", (home / "masked.py").read_text()
    script.write_text(text.replace('batch["mask"].sum(1))', 'batch["mask"].sum(1).clamp_min(1))'))
    try:
        with pytest.raises(CapsuleError, match=r"changed since the step failed. Pass --changed"):
            program_of(capsule)
        found = rerun(capsule, program_of(capsule, changed=True), depth="origin")
    finally:
        script.write_text(text)
    assert not found.reproduced
    assert found.diagnosis.cause is None  # repaired code proves no fault that comes and goes
    assert "finite in the code as it is now" in found.diagnosis.because


def test_a_program_without_a_guarded_step_says_so(capsule: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("raise SystemExit(5)")
    program = program_of(capsule, command=f"python {tmp_path}/empty.py")
    with pytest.raises(CapsuleError, match="ended with exit code 5 and never came to a guarded step"):
        rerun(capsule, program)


def test_a_script_that_is_gone_is_named(home: Path, capsule: Path) -> None:
    (home / "masked.py").rename(home / "elsewhere.py")
    try:
        with pytest.raises(CapsuleError, match=r"masked.py is no longer there"):
            program_of(capsule)
    finally:
        (home / "elsewhere.py").rename(home / "masked.py")


def rewritten(capsule: Path, home: Path, changes: dict[str, Any]) -> Path:
    """A copy of the manifest whose record of its program says something else, sealed as a stranger could seal it."""
    manifest = json.loads((capsule / "capsule.json").read_text())
    manifest["program"] |= changes
    manifest["sha256"] = checksums_of({key: value for key, value in manifest.items() if key != "sha256"})
    (home / "capsule.json").write_text(json.dumps(manifest))
    return home


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"module": "os"}, "never imported"),
        ({"hidden": True}, "looks like a secret"),
        ({"ranks": 2}, "one of 2 ranks"),
        ({"supervised": True}, "under `steady run`"),
        ({"script": None}, "no script"),
        ({"script": "/no/such/script.py"}, "no longer there"),
        ({"folder": "/no/such/folder"}, "no longer there"),
        ({"arguments": [{"not": "a word"}]}, "is corrupt"),
        ({"sha256": None}, "changed since"),
    ],
)
def test_a_program_that_cannot_be_run_again_gets_one_sentence(
    changes: dict[str, Any], words: str, capsule: Path, tmp_path: Path
) -> None:
    with pytest.raises(CapsuleError, match=words) as caught:
        program_of(rewritten(capsule, tmp_path, changes))
    assert "\n" not in str(caught.value)


def test_a_manifest_changed_by_hand_runs_nothing(capsule: Path, tmp_path: Path) -> None:
    text = (capsule / "capsule.json").read_text()
    (tmp_path / "capsule.json").write_text(text.replace("masked.py", "other.py"))
    with pytest.raises(CapsuleError, match="manifest was changed"):
        program_of(tmp_path)


def test_without_a_yes_nothing_is_run(
    capsule: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["steady", "replay", str(capsule)])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr("steadygrad.diagnosis.capsule.replay_parent.rerun", lambda *_: pytest.fail("it was run"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert "masked.py run 7" in said.err
    assert "pass --yes" in said.err
    assert said.out == ""


@pytest.mark.parametrize("command", ["", "-c 'print(1)'", "no_such_script.py", "'unbalanced"])
def test_a_command_that_names_no_program_is_refused(command: str, capsule: Path) -> None:
    with pytest.raises(UsageError, match="--command"):
        program_of(capsule, command=command)


def test_a_module_is_run_when_the_caller_names_it(capsule: Path) -> None:
    program = program_of(capsule, command="python -m package.train --epochs 3")
    assert program.words[1:] == ("-m", "package.train", "--epochs", "3")
    assert program.folder == Path.cwd()
