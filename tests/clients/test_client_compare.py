"""The comparison of suites itself, on a tiny suite and a stand-in for `steady run` that disturbs it on purpose."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import compare as tool
import pytest

SUITE = """
import os
import pytest

DISTURBED = os.environ.get("DISTURBED", "")


def test_steady():
    print("took 0.{} s".format(os.getpid()))


def test_breaks():
    if DISTURBED:
        raise ValueError("the update was refused at step 12")


def test_prints():
    if DISTURBED:
        print("the guard prints this")


def test_unstable(request):
    counter = request.config.rootpath / "counter"
    count = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(count))
    assert count % 2


@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert False


def test_fails_always():
    assert False


def test_last():
    if DISTURBED == "crash":
        os._exit(7)
"""
WRAPPER = """
import os, subprocess, sys
mode, words = sys.argv[1], sys.argv[2:]
if mode == "loud":
    print("steadygrad says hello")
code = subprocess.run(words, env={**os.environ, **({"DISTURBED": mode} if mode in ("yes", "crash") else {})}).returncode
incidents = '[{"symptom": "spike", "headline": "h", "first_step": 2}]'
print('{"steps": 3, "skipped": 1, "incidents": ' + incidents + "}", file=sys.stderr)
sys.exit(code)
"""


def compared(folder: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and text of a comparison of the tiny suite under the stand-in."""
    (folder / "test_tiny.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "wrapper.py").write_text(WRAPPER)
    under = f"{sys.executable} {folder / 'wrapper.py'} {mode}"
    code = tool.main(["tiny", "test_tiny.py", "--checkout", str(folder), "--under", under])
    return code, capsys.readouterr().out


def test_a_suite_that_is_not_disturbed_is_identical_and_its_unstable_test_is_listed_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = compared(tmp_path, "no", capsys)
    assert code == 0
    assert "Identical." in text
    assert "Unstable" in text
    assert "`test_tiny.py::test_unstable`: passed, then failed -> passed" in text
    assert "| xfailed | 1 | 1 | 1 |" in text
    assert "steps 3, skipped 1, incidents 1" in text


def test_a_broken_test_and_a_printed_line_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = compared(tmp_path, "yes", capsys)
    assert code == 1
    assert "Different: 1 tests (1 worse), stdout of 1 tests." in text
    assert "`test_tiny.py::test_breaks`: passed -> failed: `ValueError: the update was refused at step 12`" in text
    assert "`test_tiny.py::test_prints`: `the guard prints this`" in text
    assert "| `ValueError: the update was refused at step #` | 1 |" in text


def test_a_line_outside_of_any_test_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = compared(tmp_path, "loud", capsys)
    assert code == 1
    assert "`steadygrad says hello`" in text


def test_a_process_that_dies_in_a_test_names_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = compared(tmp_path, "crash", capsys)
    assert code == 1
    assert "`test_tiny.py::test_last`: passed -> not finished: `the process ended with 7`" in text
    assert "exit code" in text


def test_a_run_without_any_report_is_a_problem_and_not_a_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_tiny.py").write_text("def test_one():\n    pass\n")
    under = f"{sys.executable} -c 'raise SystemExit(3)'"
    code = tool.main(["tiny", "test_tiny.py", "--checkout", str(tmp_path), "--under", under])
    assert code == 1
    assert "`test_tiny.py::test_one`: passed -> not run" in capsys.readouterr().out


def test_kept_plain_runs_are_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, kept = tmp_path / "test_tiny.py", tmp_path / "kept"
    words = ["tiny", "test_tiny.py", "--checkout", str(tmp_path), "--keep", str(kept), "--under", "env"]
    suite.write_text("import warnings\n\ndef test_one():\n    warnings.warn('kept too')\n")
    assert tool.main(words) == 0
    suite.write_text("def test_one():\n    assert False\n")
    assert tool.main([*words, "--reuse-plain"]) == 1
    assert "`test_tiny.py::test_one`: passed -> failed" in capsys.readouterr().out
    assert "assert False" in json.loads((kept / "errors.json").read_text())["test_tiny.py::test_one"]


def test_a_name_without_paths_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["unknown", "--checkout", str(tmp_path)]) == 2
    assert "name its test paths" in capsys.readouterr().err


def test_the_page_has_a_row_for_each_suite_that_was_written(tmp_path: Path) -> None:
    run = tool.Run(code=0, stdout="", stderr="", seconds=1.0, tests={"a": tool.Test("passed")})
    for name in ("one", "two"):
        about: dict[str, Any] = {"suite": name, "version": "1", "commit": "c", "python": "Python 3", "torch": "2"}
        tool.write(about | tool.compare(run, run, run), tmp_path)
    page = (tmp_path / "clients-suites.md").read_text()
    assert "| one | 1 | 1 | 1 | 1 | 0 | 0 | 0 | yes |" in page
    assert "| two | 1 | 1 | 1 | 1 | 0 | 0 | 0 | yes |" in page
    assert json.loads((tmp_path / "clients-one.json").read_text())["identical"] is True


def test_folders_of_this_machine_do_not_get_into_a_result() -> None:
    found = tool.without_paths({"a": ["x /srv/suite/t.py"], "n": 3}, {"/srv/suite": "<checkout>"})
    assert found == {"a": ["x <checkout>/t.py"], "n": 3}
    inside = "in /opt/venv/lib/python3.11/site-packages/torch/a.py: /usr/lib/python3.11/ast.py"
    assert tool.without_paths(inside, {}) == "in <python>/torch/a.py: <python>/ast.py"


def test_numbers_colours_widths_and_durations_are_not_compared() -> None:
    assert tool._constant("  1     nan  \x1b[32m0.53\x1b[0m  x") == tool._constant("  10  -0.4  nan  x")
    assert tool._constant("2 passed in 107.2s (0:01:47)") == tool._constant("2 passed in 9.1s")
    assert tool._constant("-------  ------------  ------") == tool._constant("-------  ------------  -------")
    assert tool._constant("Testing ━━━━━━ 2/2 67.33it/s") == tool._constant("Testing ━━━━━ 2/2 152.94it/s")
    assert tool._constant("2 passed in 9.1s") != tool._constant("2 failed in 9.1s")


def test_every_suite_of_the_table_has_paths_and_a_version() -> None:
    suites = tool.known_suites()
    assert {"skorch", "pytorch_optimizer", "accelerate", "ignite"} <= set(suites)
    assert all(suite.tests and suite.version for suite in suites.values())
