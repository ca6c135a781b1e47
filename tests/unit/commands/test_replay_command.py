"""`steady replay` runs a failing step again from disk, in a process of its own, and trusts nothing in the capsule."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.commands import main
from steadygrad.diagnosis.capsule.manifest import checksums_of
from steadygrad.journal import read_incidents

SCRIPT = """
import os
import sys
import torch
import steadygrad as sg
from torch import nn

torch.set_num_threads(1)


class Ratio(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, mask):
        hidden = torch.tanh(self.drop(self.body(x)))
        return (hidden * mask).sum(1) / mask.sum(1)


def loss_fn(model, batch):
    loss = (model(batch["x"], batch["mask"]) - batch["y"]).pow(2).mean()
    return loss * float("nan") if os.environ.get("COSMIC_RAY") == str(int(batch["number"])) else loss


def make():
    model = Ratio()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss_fn


if __name__ == "__main__":
    torch.manual_seed(0)
    with sg.Guard(*make(), run_dir=sys.argv[1], max_grad_norm=1.0) as guard:
        for number in range(6):
            batch = {"x": torch.randn(5, 4), "mask": torch.ones(5, 4), "y": torch.randn(5), "number": number}
            if number == 4 and "COSMIC_RAY" not in os.environ:
                batch["mask"][3] = 0
            guard.step(batch)
"""


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the script, a run of it with an empty mask, and one in which a number was hit by chance."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "masked_training.py").write_text(SCRIPT)
    for run, environment in (("run", {}), ("struck", {"COSMIC_RAY": "2"})):
        answer = python("masked_training.py", run, cwd=folder, **environment)
        assert answer.returncode == 0, answer.stderr
    return folder


def replay(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "steadygrad.commands", "replay", *arguments, cwd=home)


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The one sentence of a replay that cannot be, with its exit code checked."""
    monkeypatch.setattr(sys, "argv", ["steady", "replay", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.fixture
def copied(home: Path, tmp_path: Path) -> Path:
    """The incident's folder, to be spoiled."""
    shutil.copytree(home / "run", tmp_path / "run")
    return tmp_path / "run" / "incidents" / "0001"


def test_a_fresh_process_finds_the_same_origin_and_cause(home: Path) -> None:
    (there,) = read_incidents(home / "run")
    answer = replay(home, "run", "--entry", "masked_training:make", "--json")
    assert answer.returncode == 1, answer.stderr
    found = json.loads(answer.stdout)
    assert found["reproduced"] is True
    assert found["same_loss_bits"] is True
    assert there.diagnosis is not None
    assert there.diagnosis.cause is not None
    assert there.diagnosis.origin is not None
    assert found["diagnosis"]["cause"]["slug"] == there.diagnosis.cause.slug == "zero_division"
    origin = found["diagnosis"]["origin"]
    assert (origin["op"], origin["code_line"]) == (there.diagnosis.origin.op, there.diagnosis.origin.code_line)
    assert "mask.sum(1)" in origin["code_line"]
    assert found["diagnosis"]["rows"] == [3]


def test_a_step_that_comes_out_finite_exits_with_0_and_says_so(home: Path) -> None:
    answer = replay(home, "struck/incidents/0001", "--entry", "masked_training:make")
    assert answer.returncode == 0, answer.stderr
    assert "not reproduced (finite)" in answer.stdout
    assert "transient_fault" in answer.stdout


def test_nothing_that_a_capsule_names_is_imported_or_opened(home: Path, copied: Path) -> None:
    trap = "open('sprung', 'w').close()"
    (home / "trap_of_a_stranger.py").write_text(f"{trap}\ndef make():\n    {trap}\n")
    path = copied / "capsule.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    manifest["facts"] |= {"entry": "trap_of_a_stranger:make", "model": "trap_of_a_stranger.Net"}
    manifest["command"] = ["trap_of_a_stranger.py"]
    manifest["tree"]["state"]["extras"] = {"$import": "trap_of_a_stranger", "__reduce__": "trap_of_a_stranger:make"}
    manifest["sha256"] = checksums_of({key: value for key, value in manifest.items() if key != "sha256"})
    path.write_text(json.dumps(manifest))
    answer = replay(home, str(copied), "--entry", "masked_training:make")
    assert answer.returncode == 1, answer.stderr
    assert not (home / "sprung").exists()
    # The trap is a real one: named on the command line, by the user, it is sprung.
    assert replay(home, str(copied), "--entry", "trap_of_a_stranger:make").returncode == 2
    assert (home / "sprung").exists()


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    return home


def truncate(folder: Path) -> None:
    blob = folder / "capsule.safetensors"
    blob.write_bytes(blob.read_bytes()[:-9])


def tamper(folder: Path) -> None:
    blob = folder / "capsule.safetensors"
    data = bytearray(blob.read_bytes())
    data[-3] ^= 4
    blob.write_bytes(bytes(data))


def tamper_with_the_rate(folder: Path) -> None:
    path = folder / "capsule.json"
    text = path.read_text()
    assert '"lr": 0.01' in text
    path.write_text(text.replace('"lr": 0.01', '"lr": 0.02', 1))


def tear(folder: Path) -> None:
    path = folder / "capsule.json"
    path.write_text(path.read_text()[:100])


def make_newer(folder: Path) -> None:
    path = folder / "capsule.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))


def make_foreign(folder: Path) -> None:
    (folder / "capsule.json").write_text('{"format": "somebody-elses", "version": 1}')


def take_away(folder: Path) -> None:
    (folder / "capsule.json").unlink()


def spoil_a_fact(folder: Path) -> None:
    path = folder / "capsule.json"
    manifest = json.loads(path.read_text())
    manifest["facts"]["accumulate"] = {"not": "a number"}
    manifest["sha256"] = checksums_of({key: value for key, value in manifest.items() if key != "sha256"})
    path.write_text(json.dumps(manifest))


def spoil_the_random_state(folder: Path) -> None:
    path = folder / "capsule.json"
    manifest = json.loads(path.read_text())
    manifest["tree"]["state"]["rng"]["cpu"] = [1, 2, 3]
    manifest["sha256"] = checksums_of({key: value for key, value in manifest.items() if key != "sha256"})
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncate, "truncated or was changed"),
        (tamper, "SHA-256 differs"),
        (tamper_with_the_rate, "manifest was changed"),
        (tear, "torn or not ours"),
        (make_newer, "Upgrade to read it"),
        (make_foreign, "not a capsule of steadygrad"),
        (take_away, "no finished capsule"),
        (spoil_a_fact, "is corrupt"),
        (spoil_the_random_state, "is corrupt"),
    ],
)
def test_a_capsule_that_cannot_be_used_gets_one_sentence_and_exit_code_2(
    spoil: Any,
    words: str,
    at_home: Path,
    copied: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(copied)
    assert words in refused(capsys, monkeypatch, str(copied), "--entry", "masked_training:make")


@pytest.mark.parametrize(
    ("target", "entry", "words"),
    [
        ("nowhere", "masked_training:make", "There is no directory nowhere"),
        ("run", "masked_training", "expected module:function"),
        ("run", "masked_training:os.system", "expected module:function"),
        ("run", "masked_training:absent", "has no function absent"),
        ("run", "no_such_module_here:make", "ModuleNotFoundError"),
        ("run", "masked_training:Ratio", "must return"),
    ],
)
def test_a_call_that_cannot_work_gets_one_sentence_and_exit_code_2(
    target: str,
    entry: str,
    words: str,
    at_home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert words in refused(capsys, monkeypatch, target, "--entry", entry)


def test_a_run_without_any_capsule_is_told_why(
    at_home: Path, copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(copied)
    said = refused(capsys, monkeypatch, str(copied.parent.parent), "--entry", "masked_training:make")
    assert "first incident of each kind" in said
