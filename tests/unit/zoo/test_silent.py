"""The silent errors: what is asked of an entry point, and what counts as named."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # the zoo is not installed with the package
    sys.path.insert(0, str(ROOT))
silent = importlib.import_module("zoo.silent.__main__")
FAILURE, CONTROL = "518_transitions_live_in_the_criterion", "585_control_probabilities_and_their_log"


@pytest.mark.parametrize("case", [FAILURE, CONTROL])
def test_attach_names_a_failure_and_leaves_a_healthy_run_alone_in_any_folder(tmp_path: Path, case: str) -> None:
    path = shutil.copy(silent.HOME / "cases" / f"{case}.py", tmp_path)
    row = silent.score(Path(path), ["attach"])
    assert row["attach"].keys() == {"named", "step", "said"}, row
    assert row["attach"]["named"]
    assert ("parameter_not_in_optimizer" in row["attach"]["said"]) == (case == FAILURE)


def test_the_summary_counts_a_missed_failure_and_a_false_alarm() -> None:
    rows = [{"cause": cause, "attach": {"named": named}} for cause in ("lr_zero", "none") for named in (True, False)]
    assert silent.summary(rows, ["attach"]) == "named 1 of 2; healthy runs left alone 1 of 2"
