"""The run directory: private, atomic, one writer a rank, continued and not overwritten."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from steadygrad.journal import Journal, read_run, read_steps
from steadygrad.journal import safe_files as journal_files
from steadygrad.journal.run_directory import RunDirectory, redacted
from steadygrad.records import StepRecord
from steadygrad.records.errors import JournalError


def test_directories_are_private_and_files_are_too(tmp_path: Path) -> None:
    with Journal(tmp_path / "deep" / "er" / "run") as journal:
        journal.step(StepRecord(run="r", step=1))
        journal.event("x")
        journal.quarantine("k", step=1)
        journal.write_state({"a": 1})
    seen = 0
    for folder, names, leaves in os.walk(tmp_path / "deep" / "er" / "run"):
        for name in [".", *names]:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o700
        for name in leaves:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600
            seen += 1
    assert seen >= 5


def test_run_json_says_what_ran(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", run_config={"lr": float("inf"), "policy": "balanced"}).close()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["configuration"] == {"lr": "inf", "policy": "balanced"}
    assert about["versions"]["python"] == sys.version.split()[0]
    assert about["versions"]["torch"].startswith("2.")
    assert len(about["sessions"]) == 1


def test_secrets_on_the_command_line_are_not_written_down() -> None:
    shown = redacted(
        ["train.py", "--hf-token", "abc", "--api_key=xyz", "password=p", "--lr", "3e-4", "--token", "--x", "1"]
    )
    assert shown == [
        "train.py",
        "--hf-token",
        "***",
        "--api_key=***",
        "password=***",
        "--lr",
        "3e-4",
        "--token",
        "--x",
        "1",
    ]


def test_an_existing_run_is_continued_with_its_name_and_numbers(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run", run_config={"lr": 1})
    first.incident_directory(3)
    first.close()
    second = RunDirectory(tmp_path / "run", run_config={"lr": 2})
    assert (first.continued, second.continued) == (False, True)
    assert second.run_id == first.run_id
    assert second.last_incident() == 3
    second.close()
    about = read_run(tmp_path / "run")
    assert about["configuration"] == {"lr": 2}
    assert len(about["sessions"]) == 2


def test_ranks_share_a_run_and_nothing_else(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / "run", rank=rank) for rank in (1, 0, 2)]
    assert len({journal.run_id for journal in journals}) == 1
    for journal in journals:
        journal.step(StepRecord(run="r", step=1, rank=journal.rank))
        assert journal.event("hello")
        assert journal.write_state({"rank": journal.rank})
        assert journal.read_state() == {"rank": journal.rank}
        journal.close()
    assert sorted(record.rank for record in read_steps(tmp_path / "run")) == [0, 1, 2]


def test_a_second_writer_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    with Journal(tmp_path / "run"):
        with pytest.raises(JournalError, match=r"already being written by this process.*Pass another run_dir"):
            Journal(tmp_path / "run")
        code = f"from steadygrad.journal import Journal; Journal({str(tmp_path / 'run')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert f"already being written by process {os.getpid()}" in other.stderr
    Journal(tmp_path / "run").close()


@pytest.mark.parametrize("where", ["a file", "below a file", "no permission"])
def test_an_unwritable_run_dir_is_one_clear_sentence(tmp_path: Path, where: str) -> None:
    path = tmp_path / "run"
    if where == "a file":
        path.write_text("x")
    elif where == "below a file":
        path.write_text("x")
        path = path / "run"
    else:
        path = Path("/proc/nowhere/run")  # not even root may make a directory there
    with pytest.raises(JournalError, match=r"^Run directory .* cannot be written: .*pass a run_dir") as caught:
        Journal(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_directory_that_is_no_run_is_made_into_one_and_its_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.bin").write_bytes(b"mine")
    Journal(tmp_path).close()
    assert (tmp_path / "checkpoint.bin").read_bytes() == b"mine"
    assert read_run(tmp_path)["run"]


@pytest.mark.parametrize("part", ["..", ".", "", "a/b", "/etc", "a\0b"])
def test_no_name_leads_out_of_the_run(tmp_path: Path, part: str) -> None:
    with pytest.raises(JournalError, match="is not a name inside the run directory"):
        journal_files.inside(tmp_path, part)


def test_a_failed_replacement_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    journal_files.replace_file(path, b"old")

    def full(descriptor: int, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_files, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        journal_files.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_only_the_first_of_two_creators_wins(tmp_path: Path) -> None:
    assert journal_files.create_file(tmp_path / "run.json", b"first")
    assert not journal_files.create_file(tmp_path / "run.json", b"second")
    assert (tmp_path / "run.json").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["run.json"]


def test_old_debris_of_a_killed_writer_is_swept_and_young_is_left(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").close()
    old, young, foreign = (tmp_path / "run" / "steps" / name for name in (".writing-old", ".writing-young", ".mine"))
    for path in (old, young, foreign):
        path.write_bytes(b"x")
    for path in (old, foreign):
        os.utime(path, (1, 1))
    RunDirectory(tmp_path / "run").close()
    assert sorted(os.listdir(tmp_path / "run" / "steps")) == [".mine", ".writing-young"]


def test_the_journal_is_read_without_torch(tmp_path: Path) -> None:
    Journal(tmp_path / "run").close()
    code = (
        "import sys; from steadygrad.journal import read_steps; "
        f"list(read_steps({str(tmp_path / 'run')!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
