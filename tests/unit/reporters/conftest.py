"""Runs that the reporters are tested with, made once for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_runs import Call, write_guarded_run, write_long_run

from steadygrad.commands import main


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs the command in this process: exit code, output, errors."""
    monkeypatch.setenv("COLUMNS", "160")

    def steady(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steady", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), printed.out, printed.err

    return steady


@pytest.fixture(scope="session")
def guarded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that a real guard wrote, with incidents it diagnosed itself."""
    return write_guarded_run(tmp_path_factory.mktemp("guarded") / "ratio")


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five thousand steps of sixty tensors with four refused ones."""
    return write_long_run(
        tmp_path_factory.mktemp("long") / "five-thousand", steps=5000, tensors=60, bad=(812, 2400, 2401, 4100)
    )
