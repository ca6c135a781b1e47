"""`%load_ext steadygrad`, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.io import capture_output

CELL = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(4, 3)
    if step == 2:
        x[1, 1] = float("nan")
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
finite = bool(torch.isfinite(model.weight).all())
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made = InteractiveShell()
    made.history_manager.enabled = False
    yield made
    if "steadygrad" in made.extension_manager.loaded:
        made.run_line_magic("unload_ext", "steadygrad")
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


def said(shell: InteractiveShell, line: str) -> str:
    with capture_output() as captured:
        shell.run_cell(line).raise_error()
    return str(captured.stdout)


def test_a_notebooks_loop_is_guarded_and_the_magic_says_what_happened(shell: InteractiveShell) -> None:
    assert "guards the training loops" in said(shell, "%load_ext steadygrad")
    assert "No optimizer has stepped yet" in said(shell, "%steady")
    said(shell, CELL)
    assert shell.user_ns["finite"] is True
    told = said(shell, "%steady")
    assert "3 of 4 updates not refused, 1 refused." in told
    assert "DX401 bad_input" in told
    assert "recorded in runs/notebook-" in told


def test_off_means_off(shell: InteractiveShell) -> None:
    said(shell, "%load_ext steadygrad")
    assert "nothing is guarded from now on" in said(shell, "%steady off")
    said(shell, CELL)
    assert shell.user_ns["finite"] is False
    assert "steadygrad is off" in said(shell, "%steady")
    assert "the policy observe" in said(shell, "%steady on --policy observe --run-dir mine --diagnose off")
    said(shell, CELL)
    assert shell.user_ns["finite"] is False  # observing lets everything land
    assert Path("mine/run.json").is_file()


def test_an_error_in_a_cell_names_the_nan_behind_it(shell: InteractiveShell) -> None:
    said(shell, "%load_ext steadygrad")
    cell = (
        "import torch\n"
        "p = torch.zeros(3) / 0.0\n"
        "torch.nn.functional.binary_cross_entropy(p, torch.ones(3))\n"
    )  # fmt: skip
    with capture_output() as captured:
        result: Any = shell.run_cell(cell)
    assert result.error_in_exec is not None
    assert "steadygrad: where this error was raised, `p`" in captured.stderr


def test_a_wrong_word_gets_one_sentence(shell: InteractiveShell) -> None:
    from steadygrad import UsageError

    said(shell, "%load_ext steadygrad")
    with capture_output(), pytest.raises(UsageError, match="%steady does not understand 'perhaps'"):
        shell.run_cell("%steady perhaps").raise_error()
