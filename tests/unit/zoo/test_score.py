"""The scorer: what counts as right, and that a crash or a hang counts against the tool."""

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

TRUTH: dict[str, Any] = {
    "symptom": "nan_loss",
    "phase": "loss",
    "cause": "log_zero",
    "op": "log",
    "op_also": ["_to_copy"],
    "module": None,
    "line_marker": "# <-- origin",
    "first_bad_step": 7,
    "bad_rows": [1],
    "fixes_that_work": ["log_softmax", "skip_batch"],
    "fixes_that_do_not": ["clip"],
}

CASE = """
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="{name}", source="test", symptom="{symptom}", phase="loss", cause="log_zero", op="log", module=None,
             line_marker="# <-- origin", first_bad_step=1, bad_rows=[2],
             fixes_that_work=["skip_batch", "drop_rows", "eps"], fixes_that_do_not=["clip"])
FIXES = set()


def make(seed=0, fix=None):
    model, data = B.mlp(8, 8, 1), B.xy(5)
    {body}

    def loss_fn(m, b):
        return torch.log(m(b["x"]).square() * b["w"]).mean()  # <-- origin

    return Case(model, loss_fn, data, B.adam(model))
"""
SICK = "[b.update(w=torch.ones(6, 1)) for b in data]; data[1]['w'][2] = 0.0"


@pytest.fixture
def truth() -> Any:
    return importlib.import_module("zoo.truth")


@pytest.fixture
def score() -> Any:
    return importlib.import_module("zoo.score")


def case_file(folder: Path) -> Path:
    path = folder / "900_case.py"
    path.write_text("first line\nloss = torch.log(p)  # <-- origin\n")
    return path


def test_a_right_answer_is_right_in_every_field(truth: Any, tmp_path: Path) -> None:
    path = case_file(tmp_path)
    answer = truth.Answer(
        alarm_step=7,
        phase="loss",
        op="log",
        lines=["/lib/x.py:9", f"{path}:2"],
        rows=[1],
        cause="log_zero",
        verified=["eps"],
    )
    assert set(truth.judge(answer, TRUTH, path).values()) == {True}


def test_an_alarm_before_or_after_its_time_is_not_on_time(truth: Any) -> None:
    assert truth.on_time(7, TRUTH)
    assert not truth.on_time(6, TRUTH)
    assert not truth.on_time(8, TRUTH)
    assert truth.on_time(4, TRUTH | {"latent_from": 3})
    assert truth.on_time(9, TRUTH | {"symptom": "silent"})


def test_an_alarm_at_the_end_of_the_window_of_the_bad_micro_batch_is_on_time(truth: Any) -> None:
    assert truth.on_time(7, TRUTH | {"first_bad_step": 4}, 4)
    assert not truth.on_time(8, TRUTH | {"first_bad_step": 4}, 4)
    assert not truth.on_time(7, TRUTH | {"first_bad_step": 4})


def test_a_remedy_known_not_to_work_is_named_as_wrongly_verified(truth: Any, tmp_path: Path) -> None:
    answer = truth.Answer(alarm_step=7, verified=["skip_batch", "clip"])
    assert truth.judge(answer, TRUTH, case_file(tmp_path))["remedy"] is True
    assert truth.wrongly_verified(answer, TRUTH) == ["clip"]


def test_a_remedy_of_the_same_arithmetic_is_not_wrongly_verified(truth: Any) -> None:
    answer = truth.Answer(alarm_step=7, verified=["eps"])
    assert truth.wrongly_verified(answer, TRUTH | {"fixes_that_do_not": ["clip", "eps"]}) == []


def test_a_line_outside_the_case_is_no_answer(truth: Any, tmp_path: Path) -> None:
    answer = truth.Answer(alarm_step=7, lines=["/somewhere/else.py:2"])
    assert truth.judge(answer, TRUTH, case_file(tmp_path))["line"] is False


def test_an_answer_is_honest_that_claims_nothing_wrong(truth: Any) -> None:
    also = {**TRUTH, "cause_also": ["cancellation"]}
    assert truth.honest(truth.Answer(alarm_step=3, cause="cancellation"), also)
    assert not truth.honest(truth.Answer(alarm_step=3, cause="cancellation"), TRUTH)
    assert truth.honest(truth.Answer(alarm_step=3, cause=None), TRUTH)  # "not diagnosed" is an answer
    wrong = truth.Answer(alarm_step=3, verified=[TRUTH["fixes_that_do_not"][0]])
    assert not truth.honest(wrong, TRUTH)


def test_a_folder_is_scored_and_a_crash_counts_against_the_tool(score: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "900_sick.py").write_text(CASE.format(name="900_sick", symptom="inf_loss", body=SICK))
    (folder / "901_crash.py").write_text(
        CASE.format(name="901_crash", symptom="inf_loss", body="raise RuntimeError('no')")
    )
    out = tmp_path / "scores.json"
    assert score.main(["--cases", str(folder), "--json", str(out), "--tools", "upper_bound", "--jobs", "1"]) == 0
    report = json.loads(out.read_text())
    by_case = {row["case"]: row for row in report["cases"]}
    assert set(by_case["900_sick"]["fields"].values()) == {True}
    assert by_case["901_crash"]["fields"]["detected"] is False
    assert "RuntimeError: no" in by_case["901_crash"]["answer"]["error"]
    assert report["totals"]["upper_bound"]["detected"] == "1/2"


def test_an_unknown_tool_is_refused_with_the_known_ones(score: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        score.main(["--tools", "crystal_ball"])
    assert "detect_anomaly" in capsys.readouterr().err


def test_every_entry_point_is_scored_in_one_table_and_fields_it_cannot_answer_are_not_asked(
    score: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "900_sick.py").write_text(CASE.format(name="900_sick", symptom="inf_loss", body=SICK))
    out = tmp_path / "scores.json"
    options = ["--tools", "guard,attach,run", "--jobs", "1", "--limit", "300"]
    assert score.main(["--cases", str(folder), "--json", str(out), *options]) == 0
    report = json.loads(out.read_text())
    assert {name: line["detected"] for name, line in report["totals"].items()} == {
        "guard": "1/1",
        "attach": "1/1",
        "run": "1/1",
    }
    assert report["totals"]["attach"]["line"] == "n/a"
    assert report["totals"]["run"]["line"] == "1/1"
    assert report["totals"]["run"]["operation"] == "1/1"
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[-3:]] == ["guard", "attach", "run"]


def test_a_loop_that_the_tool_was_not_made_for_is_left_out_and_counted(score: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    text = CASE.format(name="900_sick", symptom="inf_loss", body=SICK)
    (folder / "900_sick.py").write_text(text.replace("B.adam(model))", "B.adam(model), skip_nonfinite='loss')"))
    out = tmp_path / "scores.json"
    assert score.main(["--cases", str(folder), "--json", str(out), "--tools", "guard", "--jobs", "1"]) == 0
    totals = json.loads(out.read_text())["totals"]["guard"]
    assert totals["left_out"] == "1"
    assert totals["detected"] == "0/0"


OPAQUE = """
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="{name}", source="test", symptom="{symptom}", phase="loss", cause="log_zero", op="log", module=None,
             line_marker="# <-- origin", first_bad_step=2, bad_rows=[1],
             fixes_that_work=["eps"], fixes_that_do_not=["clip"])
FIXES = set()


class Closed:
    \"\"\"A trainer that shows nothing of itself but `train`.\"\"\"

    def train(self):
        torch.manual_seed(0)
        model = B.mlp(8, 8, 1)
        optimizer = B.adam(model)
        for number, batch in enumerate(B.xy(5)):
            weight = torch.ones(6, 1)
            weight[1] = {value} if number == 2 else 1.0
            loss = torch.log(model(batch["x"]).square() * weight).mean()  # <-- origin
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def make(seed=0, fix=None):
    return Case(None, None, [], trainer=Closed)
"""


def test_a_trainer_that_cannot_be_taken_apart_is_watched_from_outside(score: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "902_closed.py").write_text(OPAQUE.format(name="902_closed", symptom="inf_loss", value="0.0"))
    (folder / "903_control.py").write_text(OPAQUE.format(name="903_control", symptom="none", value="2.0"))
    out = tmp_path / "scores.json"
    options = ["--tools", "upper_bound", "--jobs", "1", "--limit", "300"]
    assert score.main(["--cases", str(folder), "--json", str(out), *options]) == 0
    sick, control = json.loads(out.read_text())["cases"]
    assert sick["answer"]["error"] == ""
    assert sick["fields"]["detected"] is True
    assert sick["fields"]["phase"] is True
    assert sick["fields"]["line"] is True
    assert control["false_alarm"] is False
