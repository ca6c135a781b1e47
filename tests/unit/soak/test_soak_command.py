"""`python -m soak`: results that are kept as they come, and a table that says what could not be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.__main__ import main
from soak.results import DISTURBED, LEFT_ALONE, NOT_APPLICABLE, Result, append, code_digest, read, total_guarded
from soak.table import markdown


def soak(folder: Path, *more: str) -> int:
    fixed = ["--steps", "12", "--only", "uneven_windows", "--results", str(folder / "r.jsonl")]
    return main([*fixed, "--entry-points", "plain,guard,attach", *more])


def test_a_run_is_resumed_without_doing_anything_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    assert soak(tmp_path) == 0
    first = path.read_text()
    assert soak(tmp_path, "--resume", "--md", str(tmp_path / "t.md")) == 0
    assert path.read_text() == first
    assert "n/a: windows of unequal size" in (tmp_path / "t.md").read_text()
    assert "12 guarded updates" in capsys.readouterr().out


def test_results_of_other_code_are_not_taken_for_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for name in ("plain", "guard", "attach"):
        old = Result(
            regime="uneven_windows", seed=0, entry_point=name, kind="healthy", steps=12, status=LEFT_ALONE, code=""
        )
        append(path, old)
    assert soak(tmp_path, "--resume") == 0
    assert len(path.read_text().splitlines()) == 6


def test_a_torn_line_is_run_again_and_the_last_result_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for status in (DISTURBED, LEFT_ALONE):
        append(path, Result(regime="x", seed=0, entry_point="guard", kind="healthy", steps=5, guarded=5, status=status))
    with path.open("a") as file:
        file.write('{"regime": "y", "seed"')
    (only,) = read(path)
    assert only.status == LEFT_ALONE
    assert total_guarded([only]) == 5


def test_a_disturbed_run_fails_the_command_and_stands_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Result(
        regime="uneven_windows", seed=0, entry_point="guard", kind="healthy", steps=12, guarded=12, status=DISTURBED,
        why="refused 2", code=code_digest(),
    )  # fmt: skip
    append(tmp_path / "r.jsonl", bad)
    assert soak(tmp_path, "--resume") == 1
    assert "disturbed: uneven_windows, seed 0, guard: refused 2" in capsys.readouterr().out
    good = Result(regime="other", seed=0, entry_point="guard", kind="healthy", steps=9, status=NOT_APPLICABLE, why="so")
    page = markdown([bad, good], "python -m soak")
    assert "0 of 1 runs left alone" in page
    assert "| uneven_windows | not finite to not finite | **disturbed** |" in page
    assert "| other | not finite to not finite | n/a: so |" in page


def test_a_name_that_is_no_regime_or_entry_point_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="There is no regime 'millions'"):
        main(["--only", "millions", "--results", str(tmp_path / "r.jsonl")])
    with pytest.raises(SystemExit):
        main(["--entry-points", "gard"])
    assert "there is no entry point 'gard'" in capsys.readouterr().err
