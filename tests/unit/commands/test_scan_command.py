"""`steady scan` as a person and a script meet it: words, JSON, exit codes, and what it must not import."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from steadygrad.commands import main

Call = Callable[..., tuple[int, str, str]]
HOSTILE = "w\x1b[2J\u202e"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steady", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    monkeypatch.setenv("COLUMNS", "160")
    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    save_file({"w": torch.ones(4, 4), HOSTILE: torch.ones(2)}, tmp_path / "good.safetensors")
    save_file({"w": torch.tensor([[1.0, math.nan]]), HOSTILE: torch.tensor([-math.inf])}, tmp_path / "bad.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    return tmp_path


def test_exit_codes_are_0_clean_1_poisoned_2_unreadable_and_poison_outranks_unreadable(call: Call, files: Path) -> None:
    good, bad, torn = (str(files / f"{name}.safetensors") for name in ("good", "bad", "torn"))
    assert call("scan", good)[0] == 0
    assert call("scan", bad)[0] == 1
    assert call("scan", torn)[0] == 2
    assert call("scan", good, torn)[0] == 2
    assert call("scan", good, torn, bad)[0] == 1
    assert call("scan", str(files))[0] == 1
    assert call("scan", str(files / "nothing"))[0] == 2


def test_the_words_name_file_tensor_rule_and_place(call: Call, files: Path) -> None:
    code, out, err = call("scan", str(files))
    assert (code, err) == (1, "")
    assert "CK101 nan_values        w: 1 of 2 values is NaN, the first at [0, 1]" in out
    assert "CK102 inf_values" in out
    assert "too short for a safetensors file" in out
    assert out.splitlines()[-1].startswith("poisoned: 1 of 3 files (1 cannot be read), 4 tensors")


def test_names_from_a_stranger_cannot_move_the_terminal(call: Call, files: Path) -> None:
    out = call("scan", "--tensors", str(files))[1]
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"w\x1b[2J\u202e" in out
    assert call("scan", "--json", str(files))[1].isascii()


def test_json_carries_verdicts_findings_and_problems(call: Call, files: Path) -> None:
    code, out, _ = call("scan", "--json", str(files))
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "poisoned")
    by_name = {Path(file["path"]).stem: file for file in told["files"]}
    assert {name: file["verdict"] for name, file in by_name.items()} == {
        "good": "clean", "bad": "poisoned", "torn": "unreadable",
    }  # fmt: skip
    assert by_name["good"]["tensors"] == []
    bad = {tensor["name"]: tensor for tensor in by_name["bad"]["tensors"]}
    assert (bad["w"]["num_nan"], bad["w"]["first_bad"], bad["w"]["largest"]) == (1, [0, 1], 1.0)
    assert [finding["code"] for finding in by_name["bad"]["findings"]] == ["CK101", "CK102"]
    everything = json.loads(call("scan", "--json", "--tensors", str(files / "good.safetensors"))[1])
    assert len(everything["files"][0]["tensors"]) == 2


def test_strict_makes_notes_count(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "zeros.safetensors"
    save_file({"w": torch.zeros(4, 4)}, path)
    assert call("scan", str(path))[0] == 0
    code, out, _ = call("scan", "--strict", str(path))
    assert code == 1
    assert "CK201" in out


def test_the_expected_type_may_be_spelt_as_people_do(call: Call, files: Path) -> None:
    good = str(files / "good.safetensors")
    assert call("scan", "--expect-dtype", "fp32", good)[0] == 0
    assert call("scan", "--expect-dtype", "torch.bfloat16", good)[0] == 1
    code, _, err = call("scan", "--expect-dtype", "float31", good)
    assert code == 2
    assert "float31 is no floating-point type known here" in err


def test_since_says_which_checkpoint_to_go_back_to(call: Call, tmp_path: Path) -> None:
    for number in range(1, 7):
        value = math.nan if number > 4 else 1.0
        save_file({"w": torch.full((3,), value)}, tmp_path / f"step-{number}.safetensors")
    code, out, _ = call("scan", "--since", str(tmp_path))
    assert code == 1
    assert f"last good  {tmp_path / 'step-4.safetensors'}" in out
    assert f"first bad  {tmp_path / 'step-5.safetensors'}" in out
    assert "CK101" in out
    told = json.loads(call("scan", "--since", "--json", str(tmp_path))[1])
    assert (Path(told["last_good"]).name, Path(told["first_bad"]).name) == ("step-4.safetensors", "step-5.safetensors")
    for number in (5, 6):
        (tmp_path / f"step-{number}.safetensors").unlink()
    code, out, _ = call("scan", "--since", str(tmp_path))
    assert code == 0
    assert "the newest checkpoint is good" in out


def test_since_wants_one_folder(call: Call, files: Path) -> None:
    code, _, err = call("scan", "--since", str(files / "good.safetensors"))
    assert code == 2
    assert "pass exactly one folder" in err
    (files / "empty").mkdir()
    assert "holds no series" in call("scan", "--since", str(files / "empty"))[2]


def test_a_scan_imports_no_torch_and_no_pyarrow(files: Path) -> None:
    torch.save({"w": torch.ones(3)}, files / "good.pt")
    for arguments in (["--help"], [str(files / "good.safetensors")], [str(files / "good.pt")], ["--json", str(files)]):
        script = (
            "import sys\n"
            f"sys.argv = ['steady', 'scan', *{arguments!r}]\n"
            "from steadygrad.checkup.scan import child_process as guarded\n"
            "guarded.can_guard = lambda: False  # all of it in this process, to see what it imports\n"
            "from steadygrad.commands import main\n"
            "try:\n    main()\n"
            "except SystemExit:\n    print('|'.join(sys.modules), file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        modules = set(done.stderr.splitlines()[-1].split("|"))
        assert "steadygrad.commands.after_training.scan" in modules
        assert not {"torch", "pyarrow", "safetensors"} & modules
        assert ("numpy" in modules) == (arguments != ["--help"])


def test_a_bar_is_drawn_on_a_terminal_and_never_into_a_file(files: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "steadygrad.commands", "scan", "--json", str(files / "good.safetensors")]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stderr == ""
    leader, follower = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    drawn = ""
    with (tmp_path / "out.json").open("w") as out, subprocess.Popen(command, stdout=out, stderr=follower, env=env):
        os.close(follower)
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(leader, 65536):
                drawn += part.decode(errors="replace")
    os.close(leader)
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "clean"
    assert "good.safetensors" in drawn
    assert "\x1b[" in drawn


def test_of_a_series_that_turns_bad_the_last_clean_file_is_named(call: Call, tmp_path: Path) -> None:
    for step in (500, 2000, 10000):
        value = math.nan if step > 2000 else 1.0
        save_file({"w": torch.tensor([value])}, tmp_path / f"step-{step}.safetensors")
    assert (
        call("scan", str(tmp_path))[1]
        .splitlines()[-1]
        .endswith("last clean: " + str(tmp_path / "step-2000.safetensors"))
    )
    assert json.loads(call("scan", "--json", str(tmp_path))[1])["last_clean"].endswith("step-2000.safetensors")
    save_file({"w": torch.ones(1)}, tmp_path / "step-20000.safetensors")  # clean again: no series
    assert "last clean" not in call("scan", str(tmp_path))[1]
    assert json.loads(call("scan", "--json", str(tmp_path))[1])["last_clean"] is None
