"""Every row of docs/reports.md does what it says: its command or Python is run, and what it states is found."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import page
import pytest

from steadygrad.commands import main

SETUPS, ROWS = page.read(page.PAGE.read_text(encoding="utf-8"))
ROOT = page.PAGE.parents[1]
PROGRAMS = Path(__file__).parent / "programs"
IN_A_PROCESS = ("run", "selftest", "probe")  # they run the program's own modules
MODEL = ("sft", "cot", "rft")


def parser_of(module: str) -> Any:
    """The command line of a recipe."""
    name = module.removeprefix("recipes.")
    if name in MODEL:
        return importlib.import_module("recipes.units.command").parser(importlib.import_module(module).RECIPE)
    if name == "distill":
        return importlib.import_module("recipes.distill.cli")._parser()
    return importlib.import_module(f"{module}.__main__").parser()


class Workspace:
    """A folder with the reports' programs, in which rows are run; what a row needs is made by the row that makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, dict[str, Any]] = {}
        self._done: dict[str, tuple[int, str]] = {}
        shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)

    def run(self, row: page.Row) -> tuple[int, str]:
        """Exit code, and all that was printed or returned."""
        for needed in re.findall(r"runs/[\w-]+", row.does):
            makers = [each for each in ROWS if re.search(rf"--(run-dir|out) {needed}( |$)", each.does)]
            if makers and makers[0] != row and not (self.folder / needed).exists():
                self.run(makers[0])
        names = self.names(row.section)
        if not row.is_command:
            return 0, self.python(row, names)
        if row.does not in self._done:
            self._done[row.does] = self.command(shlex.split(row.does))
        return self._done[row.does]

    def command(self, words: list[str]) -> tuple[int, str]:
        if words[-1] == "--help":
            with self.captured() as printed, pytest.raises(SystemExit):
                parser_of(words[2]).parse_args(words[3:])
            return 0, printed.getvalue()
        if words[0] == "python" or words[1] in IN_A_PROCESS:
            start = words[1:] if words[0] == "python" else ["-m", "steadygrad.commands", *words[1:]]
            if "--run-dir" in words:
                shutil.rmtree(self.folder / words[words.index("--run-dir") + 1], ignore_errors=True)
            path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
            done = subprocess.run(
                [sys.executable, *start], cwd=self.folder, env={**environment, "COLUMNS": "160"}, text=True,
                capture_output=True, check=False, timeout=280,
            )  # fmt: skip
            return done.returncode, done.stdout + done.stderr
        with self.captured() as printed, pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "160")
            patch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0), printed.getvalue()

    def names(self, section: str) -> dict[str, Any]:
        """What the blocks of a section define; they run once, before its first row."""
        if section not in self._names:
            self._names[section] = {"__name__": "__page__"}
            with self.captured():
                exec(SETUPS[""] + SETUPS.get(section, ""), self._names[section])
        return self._names[section]

    def python(self, row: page.Row, names: dict[str, Any]) -> str:
        with self.captured() as printed:
            try:
                value = eval(compile(row.does, f"row {row.number}", "eval"), names)
            except SyntaxError:
                exec(compile(row.does, f"row {row.number}", "exec"), names)
                value = None
            printed.write("" if value is None else "\n" + str(value))
        return printed.getvalue()

    @contextlib.contextmanager
    def captured(self) -> Any:
        """What is printed or logged by us, in the folder of the programs."""
        printed = io.StringIO()
        handler, logger = logging.StreamHandler(printed), logging.getLogger("steadygrad")
        logger.addHandler(handler)
        try:
            with (
                contextlib.chdir(self.folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed),
                warnings.catch_warnings(),
            ):  # fmt: skip
                warnings.simplefilter("ignore")
                yield printed
        finally:
            logger.removeHandler(handler)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("reports"))


def check(row: page.Row, code: int, printed: str) -> None:
    flat = " ".join(printed.split())
    for shown in row.shown:
        pattern = ".*?".join(re.escape(" ".join(part.split())) for part in shown.split("..."))
        assert re.search(pattern, flat), f"{row.does}\ndoes not show: {shown}\nbut:\n{printed[-6000:]}"
    assert code == row.code, f"{row.does}\nexited with {code}:\n{printed[-6000:]}"


@pytest.mark.parametrize("row", [row for row in ROWS if not row.long], ids=lambda row: row.number)
def test_a_row_does_what_it_says(row: page.Row, workspace: Workspace) -> None:
    check(row, *workspace.run(row))


LONG = [row for row in ROWS if row.long]


@pytest.mark.parametrize("row", LONG, ids=lambda row: row.number)
def test_the_command_of_a_long_row_is_understood(row: page.Row) -> None:
    words = shlex.split(row.does)
    assert parser_of(words[2]).parse_args(words[3:]).verb == words[3]


@pytest.mark.slow
@pytest.mark.parametrize("row", LONG, ids=lambda row: row.number)
def test_a_long_row_does_what_it_says(row: page.Row, workspace: Workspace) -> None:
    check(row, *workspace.run(row))


def test_the_page_has_a_row_for_everything_in_each_report() -> None:
    numbers = [row.number for row in ROWS]
    assert len(set(numbers)) == len(numbers) >= 109
    for section in "01234":
        own = [int(number.partition(".")[2]) for number in numbers if number.startswith(f"{section}.")]
        assert own == list(range(1, len(own) + 1)), f"rows of section {section} are not counted through"


def test_a_row_that_is_wrong_fails(workspace: Workspace) -> None:
    wrong = page._row("| 0.1 | a sum | `1 + 1` | `3` |")
    with pytest.raises(AssertionError, match="does not show: 3"):
        check(wrong, *workspace.run(wrong))
    right = page._row("| 0.2 | a rule | `steady explain DX103` | `DX103 ... eps rounds to zero` |")
    check(right, *workspace.run(right))
    with pytest.raises(AssertionError, match="exited with 0"):
        check(page._row("| 0.3 | a rule | `steady explain DX103` | exit 1: `DX103` |"), *workspace.run(right))
