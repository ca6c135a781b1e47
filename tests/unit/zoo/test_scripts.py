"""The scorer of plain scripts: what counts as survived, as called fine, and as left alone."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # the zoo is not installed with the package
    sys.path.insert(0, str(ROOT))
scripts = importlib.import_module("zoo.scripts")
truth = importlib.import_module("zoo.truth")
SCRIPTS = Path(__file__).parent / "scripts"
SICK = SCRIPTS / "log_of_a_count.py"

DIED = scripts.Ending(code=1)
FINITE = scripts.Ending(code=0, weights="FINITE", sha256="a" * 64)
POISONED = scripts.Ending(code=0, weights="POISONED")
QUIET = scripts.Reported(steps=5)


def fields(known: dict[str, Any], plain: Any, guarded: Any, reported: Any = QUIET) -> dict[str, bool | None]:
    judged: dict[str, bool | None] = scripts.judge(known, SICK, plain, guarded, reported)
    return judged


def test_a_sick_and_a_healthy_script_are_run_plain_and_guarded_and_scored(tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    assert scripts.main(["--scripts", str(SCRIPTS), "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    sick, healthy = report["scripts"]
    assert sick["plain"]["weights"] == "POISONED"
    assert set(sick["fields"].values()) == {True}
    assert sick["reported"]["samples"] == ["17"]
    assert set(healthy["fields"].values()) == {True}
    assert report["totals"]["sick"]["line"] == "1/1"
    assert report["totals"]["healthy"]["same_weights"] == "1/1"


def test_ending_better_than_the_plain_run_with_finite_weights_is_survival() -> None:
    assert fields({}, DIED, FINITE)["survived"] is True
    assert fields({}, FINITE, POISONED)["survived"] is False
    assert fields({}, FINITE, scripts.Ending(code=23, weights="FINITE"))["survived"] is False
    assert fields({}, FINITE, scripts.Ending(code=None))["survived"] is False


def test_a_script_that_does_not_say_what_became_of_its_weights_is_not_asked_whether_it_survived() -> None:
    assert fields({}, FINITE, scripts.Ending(code=0))["survived"] is None


def test_poisoned_weights_without_any_report_are_called_fine() -> None:
    assert scripts.called_fine(POISONED, QUIET)
    assert not scripts.called_fine(POISONED, scripts.Reported(steps=5, incidents=["the loss is nan"]))
    assert not scripts.called_fine(POISONED, scripts.Reported(steps=5, warnings=["SY402 hardly move"]))
    assert not scripts.called_fine(POISONED, scripts.Reported(steps=0)), "the screen says that nothing was guarded"
    assert not scripts.called_fine(FINITE, QUIET)


def test_what_the_truth_does_not_know_is_not_asked() -> None:
    asked = fields({"kind": "sick"}, POISONED, FINITE)
    assert [name for name, right in asked.items() if right is None] == ["operation", "line", "cause", "samples"]


def test_each_known_field_is_compared_with_what_was_reported() -> None:
    known = {"line": 19, "operation": ["log", "div"], "cause": "log_zero", "samples": [17], "remedies": ["clamp"]}
    answer = truth.Answer(
        alarm_step=2, op="log_", lines=["/lib/a.py:3", f"{SICK}:19"], cause="log_zero", verified=["clamp"]
    )
    right = fields(known, POISONED, FINITE, scripts.Reported(steps=5, answer=answer, samples=["17"]))
    assert set(right.values()) == {True}
    wrong = fields({**known, "line": 20, "remedies": ["eps"], "samples": [16]}, POISONED, FINITE)
    assert [name for name in scripts.SICK if wrong[name] is False] == list(scripts.SICK[1:])


def test_a_healthy_script_that_ends_with_other_weights_or_a_refusal_was_disturbed() -> None:
    other = scripts.Ending(code=0, weights="FINITE", sha256="b" * 64)
    disturbed = fields({"kind": "healthy"}, FINITE, other, scripts.Reported(steps=5, refused=1))
    assert disturbed["same_weights"] is False
    assert disturbed["nothing_refused"] is False
    assert set(fields({"kind": "healthy"}, FINITE, FINITE).values()) == {True}


def test_truths_may_be_a_list_and_names_may_leave_out_the_ending(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text(json.dumps([{"script": "a", "kind": "healthy"}, {"file": "b.py"}]))
    assert scripts.read_truths(tmp_path) == {
        "a.py": {"script": "a", "kind": "healthy"},
        "b.py": {"file": "b.py"},
    }


def test_a_folder_without_a_truth_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scripts.main(["--scripts", str(tmp_path)])
    assert "there is no truth.json" in capsys.readouterr().err
