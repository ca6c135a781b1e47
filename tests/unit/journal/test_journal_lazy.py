"""Reading incidents and events does not wait for pyarrow; reading steps loads it when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steadygrad import journal
from steadygrad.journal import Journal
from steadygrad.records import StepRecord


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Journal(tmp_path / "run") as written:
        written.step(StepRecord(run="", step=0, loss=1.0))
        assert written.event("decision", step=0)
        assert written.flush()
    return tmp_path / "run"


def modules_after(script: str) -> set[str]:
    script += "\nimport sys\nprint('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split("|"))


def test_incidents_and_events_are_read_without_pyarrow_or_numpy(run: Path) -> None:
    modules = modules_after(
        "from steadygrad.journal import Event, read_events, read_incidents, read_quarantine, read_run\n"
        f"path = {str(run)!r}\n"
        "assert isinstance(read_events(path)[0], Event)\n"
        "assert read_incidents(path) == read_quarantine(path) == []\n"
        "assert read_run(path)['format'] == 'steadygrad-run'"
    )
    assert "steadygrad.journal.events" in modules
    assert not {"pyarrow", "numpy", "torch"} & modules


def test_reading_steps_loads_pyarrow_and_works(run: Path) -> None:
    modules = modules_after(
        f"from steadygrad.journal import read_steps\nassert [record.step for record in read_steps({str(run)!r})] == [0]"
    )
    assert "pyarrow" in modules


def test_every_promised_name_resolves_and_others_do_not() -> None:
    assert len(journal._HOME) > 8
    for name in journal._HOME:
        assert getattr(journal, name).__name__ == name
        assert name in dir(journal)
    with pytest.raises(AttributeError, match="no attribute 'diary'"):
        journal.diary  # noqa: B018


def test_the_verbs_that_read_no_steps_load_neither_pyarrow_nor_numpy(run: Path) -> None:
    for arguments in (["incidents", str(run)], ["explain", "SY101"], ["scan", "--help"]):
        modules = modules_after(
            f"import sys\nsys.argv = ['steady', *{arguments!r}]\n"
            "from steadygrad.commands import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass"
        )
        assert [name for name in modules if name.endswith(f"_training.{arguments[0]}")]
        assert not {"pyarrow", "numpy", "torch"} & modules
