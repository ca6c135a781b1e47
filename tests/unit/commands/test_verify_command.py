"""`steady verify`: every line of the checklist passes on a run that deserves it and fails on one that does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from trained_run import Call, copied, forbid, make_call, newer, one_sentence, torn, train

import steadygrad as sg
from steadygrad.journal import Journal
from steadygrad.records import Finding, Incident, Severity, StepRecord
from steadygrad.records.errors import TrainingHalted


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("verify") / "tiny", checkpoint_every=20)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return make_call(capsys, monkeypatch)


def marks(call: Call, *arguments: str) -> tuple[int, dict[str, str]]:
    code, out, err = call("verify", *arguments, "--json")
    assert err == ""
    return code, {check["slug"]: check["mark"] for check in json.loads(out)["checks"]}


def written(where: Path, losses: list[float], *, applied: list[bool] | None = None) -> Path:
    with Journal(where) as journal:
        for step, loss in enumerate(losses):
            landed = applied[step] if applied else True
            record = StepRecord(run="", step=step, loss=loss, grad_norm=1.0, applied=landed)
            journal.step(record)
        assert journal.flush(60)
    return where


def test_a_healthy_run_passes_every_line_it_can_tell(call: Call, run: Path) -> None:
    code, found = marks(call, str(run))
    assert code == 0
    assert found == {
        "ended": "pass", "loss_finite": "pass", "gradient_finite": "pass", "success_rate": "pass", "loss_fell": "pass",
        "no_silent_problem": "pass", "weights_finite": "pass", "journal_whole": "pass",
    }  # fmt: skip


def test_the_words_say_pass_or_fail_and_the_numbers_behind_it(call: Call, run: Path) -> None:
    code, out, _ = call("verify", str(run))
    assert code == 0
    assert "pass  the loss of every update is finite" in out
    assert "58 updates; 2 steps at which it was not were refused" in out
    assert "96.7 % of 60 steps were applied" in out
    assert out.splitlines()[-1] == "8 passed, 0 failed"


def test_an_applied_update_with_a_nan_loss_fails(call: Call, tmp_path: Path) -> None:
    losses = [5.0 - 0.1 * step for step in range(30)]
    losses[12] = math.nan
    code, found = marks(call, str(written(tmp_path / "run", losses)))
    assert (code, found["loss_finite"], found["gradient_finite"]) == (1, "fail", "pass")
    out = call("verify", str(tmp_path / "run"))[1]
    assert "1 update was applied although it was not, the first at step 12" in out


def test_an_observed_run_in_which_a_nan_was_applied_fails(call: Call, tmp_path: Path) -> None:
    """With the policy that only looks on, the bad update lands and every later one is bad."""
    train(tmp_path / "run", policy="observe", steps=30, bad=(10,))
    code, found = marks(call, str(tmp_path / "run"))
    assert code == 1
    assert found["loss_finite"] == found["gradient_finite"] == "fail"


def test_a_loss_that_did_not_fall_fails_and_one_line_can_be_ignored(call: Call, tmp_path: Path) -> None:
    run = written(tmp_path / "run", [1.0 + 0.01 * step for step in range(40)])
    code, found = marks(call, str(run))
    assert (code, found["loss_fell"]) == (1, "fail")
    code, found = marks(call, str(run), "--ignore", "loss_fell")
    assert code == 0
    assert "loss_fell" not in found
    one_sentence(call("verify", str(run), "--ignore", "loss_fel"), "no line of this checklist", "loss_fell")


def test_a_guard_at_the_optimizer_alone_sees_no_loss_and_says_so(call: Call, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = sg.attach(optimizer, run_dir=tmp_path / "run")
    for _ in range(30):
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    code, found = marks(call, str(tmp_path / "run"))
    assert code == 0
    assert (found["loss_finite"], found["loss_fell"], found["gradient_finite"]) == (
        "not checked",
        "not checked",
        "pass",
    )
    assert "does not see the loss" in call("verify", str(tmp_path / "run"))[1]
    assert call("plot", str(tmp_path / "run"), "-o", str(tmp_path / "loss.svg"))[0] == 0
    assert "no finite value was recorded" in (tmp_path / "loss.svg").read_text()


def test_too_few_steps_leave_the_trend_open(call: Call, tmp_path: Path) -> None:
    code, found = marks(call, str(written(tmp_path / "run", [1.0, 2.0, 3.0])))
    assert (code, found["loss_fell"]) == (0, "not checked")


@pytest.mark.parametrize(("refused", "expected"), [(2, "pass"), (3, "pass"), (4, "fail")])
def test_the_alarm_is_below_85_percent(call: Call, tmp_path: Path, refused: int, expected: str) -> None:
    applied = [step >= refused for step in range(20)]
    run = written(tmp_path / "run", [3.0 - 0.1 * step for step in range(20)], applied=applied)
    code, found = marks(call, str(run))
    assert found["success_rate"] == expected
    assert code == (1 if expected == "fail" else 0)
    if refused == 3:
        assert "healthy is above 90 %" in call("verify", str(run))[1]
    assert marks(call, str(run), "--min-success", "0.5")[1]["success_rate"] == "pass"


def test_a_halted_run_fails(call: Call, tmp_path: Path) -> None:
    with pytest.raises(TrainingHalted):
        train(tmp_path / "run", bad=tuple(range(5, 60)), one_term=True)
    code, found = marks(call, str(tmp_path / "run"))
    assert (code, found["ended"]) == (1, "fail")
    assert "halted" in call("verify", str(tmp_path / "run"))[1]


def test_a_poisoned_checkpoint_fails_and_so_does_a_torn_one(call: Call, run: Path, tmp_path: Path) -> None:
    poisoned = copied(run, tmp_path / "poisoned")
    newest = max((poisoned / "snapshots").iterdir()) / "state.safetensors"
    tensors = load_file(newest)
    next(tensor for tensor in tensors.values() if tensor.is_floating_point())[...] = math.nan
    save_file(tensors, newest)
    assert marks(call, str(poisoned)) == (1, marks(call, str(run))[1] | {"weights_finite": "fail"})
    newest.write_bytes(b"torn")
    code, out, _ = call("verify", str(poisoned))
    assert code == 1
    assert "too short for a safetensors file" in out


def test_a_model_named_beside_the_run_is_scanned(call: Call, run: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "good.safetensors")
    save_file({"w": torch.full((3,), math.inf)}, tmp_path / "bad.safetensors")
    assert marks(call, str(run), "--model", str(tmp_path / "good.safetensors"))[0] == 0
    code, found = marks(call, str(run), "--model", str(tmp_path / "bad.safetensors"))
    assert (code, found["weights_finite"]) == (1, "fail")


def test_metrics_come_from_a_file_a_trainers_log_or_the_run_itself(call: Call, run: Path, tmp_path: Path) -> None:
    plain, lines, state = (tmp_path / name for name in ("m.json", "m.jsonl", "trainer_state.json"))
    plain.write_text(json.dumps({"accuracy": 0.4, "answer_rate": 0.9, "name": "x"}))
    lines.write_text('{"accuracy": 0.0}\n{"accuracy": 0.2, "answer_rate": 0.0}\n')
    state.write_text(json.dumps({"log_history": [{"eval_accuracy": 0.1, "eval_ppl": 9.0}, {"eval_ppl": 5.0}]}))
    for path, accuracy, answers in ((plain, "pass", "pass"), (lines, "pass", "fail"), (state, "pass", None)):
        code, found = marks(call, str(run), "--metrics", str(path))
        assert (found["accuracy"], found.get("answer_rate")) == (accuracy, answers)
        assert code == (1 if "fail" in (accuracy, answers) else 0)
    assert marks(call, str(run), "--metrics", str(state), "--falls", "ppl")[1]["ppl_fell"] == "pass"
    own = copied(run, tmp_path / "own")
    (own / "metrics.json").write_text('{"accuracy": 0.0}')
    assert marks(call, str(own)) == (1, marks(call, str(run))[1] | {"accuracy": "fail"})
    assert marks(call, str(run), "--falls", "fit")[1]["fit_fell"] == "pass"  # a loss term of the run


def test_what_is_asked_for_by_name_must_be_there(call: Call, run: Path, tmp_path: Path) -> None:
    code, found = marks(call, str(run), "--above", "accuracy=0.3")
    assert (code, found["accuracy"]) == (1, "not checked")
    out = call("verify", str(run), "--above", "accuracy=0.3", "--falls", "perplexity")[1]
    assert out.count("not recorded: add it to RUN/metrics.json or pass --metrics FILE") == 2
    assert out.splitlines()[-1] == "8 passed, 0 failed, 2 not checked"
    (tmp_path / "m.json").write_text('{"accuracy": 0.31}')
    assert marks(call, str(run), "--above", "accuracy=0.3", "--metrics", str(tmp_path / "m.json"))[0] == 0
    assert marks(call, str(run), "--above", "accuracy=0.32", "--metrics", str(tmp_path / "m.json"))[0] == 1
    assert marks(call, str(run), "--falls", "nothing")[0] == 1
    for wrong in ("accuracy", "=1", "accuracy=high"):
        one_sentence(call("verify", str(run), "--above", wrong), "write NAME=NUMBER")


def test_the_results_of_the_recipes_are_read_where_they_stand(call: Call, run: Path, tmp_path: Path) -> None:
    """Scores before and after in the folder above the run, and a curve of [step, value] in the run itself."""
    folder = tmp_path / "sft"
    inner = copied(run, folder / "run")
    scores = {"before": {"accuracy": 0.0, "answer_rate": 0.0}, "after": {"accuracy": 0.4, "answer_rate": 1.0}}
    (folder / "result.json").write_text(json.dumps({"recipe": "sft", "scores": scores}))
    (inner / "metrics.json").write_text(json.dumps({"perplexity": [[0, 90.0], [10, 40.0]], "note": "x"}))
    code, found = marks(call, str(folder), "--above", "accuracy=0.3", "--falls", "perplexity")
    assert (code, found["accuracy"], found["answer_rate"], found["perplexity_fell"]) == (0, "pass", "pass", "pass")
    assert marks(call, str(folder), "--above", "scores.before.accuracy=0.3")[1]["scores.before.accuracy"] == "fail"
    code, found = marks(call, str(inner), "--falls", "perplexity")
    assert (code, "accuracy" in found) == (0, False)
    (inner / "result.json").write_text(json.dumps({"curve": [[0, 9.0]]}))
    assert marks(call, str(inner), "--falls", "curve") == (
        1,
        marks(call, str(inner))[1] | {"curve_fell": "not checked"},
    )


def test_a_limit_on_the_gradient_norm_can_be_asked_for(call: Call, tmp_path: Path) -> None:
    run = written(tmp_path / "run", [3.0 - 0.1 * step for step in range(20)])  # every norm is 1
    assert marks(call, str(run), "--max-norm", "2.0")[1]["norm_below"] == "pass"
    assert marks(call, str(run), "--max-norm", "0.5")[1]["norm_below"] == "fail"


def test_a_torn_journal_fails_the_line_on_its_own_record(call: Call, run: Path, tmp_path: Path) -> None:
    code, found = marks(call, str(torn(copied(run, tmp_path / "torn"))))
    assert (code, found["journal_whole"]) == (1, "fail")
    assert found["loss_finite"] == "pass"


def test_bad_input_is_one_sentence(call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_sentence(call("verify", str(tmp_path / "none")), "does not exist")
    one_sentence(call("verify", str(tmp_path)), "not a run directory")
    Journal(tmp_path / "empty").close()
    one_sentence(call("verify", str(tmp_path / "empty")), "holds no steps yet")
    one_sentence(call("verify", str(newer(copied(run, tmp_path / "newer")))), "upgrade steadygrad")
    one_sentence(call("verify", str(run), "--metrics", str(tmp_path / "no.json")), "cannot be read: no such file")
    (tmp_path / "bad.json").write_text("not json")
    one_sentence(call("verify", str(run), "--metrics", str(tmp_path / "bad.json")), "holds no JSON")
    forbid(monkeypatch, run / "run.json")
    one_sentence(call("verify", str(run)), "permission denied")


def test_batches_that_the_program_left_out_are_in_the_success_rate(call: Call, tmp_path: Path) -> None:
    losses = [2.0 - step / 100 for step in range(40)]
    healthy, half = written(tmp_path / "healthy", losses), written(tmp_path / "half", losses)
    with Journal(half) as journal:
        for step in range(40):
            journal.event("skipped_by_program", step=step, reason="its loss is nan")
        assert journal.flush(60)
    assert marks(call, str(healthy))[1]["success_rate"] == "pass"
    code, found = marks(call, str(half))
    assert (code, found["success_rate"]) == (1, "fail")
    assert "50.0 % of 80 steps were applied; 40 were skipped by the program" in call("verify", str(half))[1]


def test_a_run_without_a_single_update_is_not_called_finite(call: Call, tmp_path: Path) -> None:
    run = written(tmp_path / "none", [math.nan] * 6, applied=[False] * 6)
    code, found = marks(call, str(run))
    assert code == 1
    assert {found["gradient_finite"], found["loss_finite"]} == {"not checked"}


def with_a_silent_problem(run: Path) -> Path:
    """The run with an incident of a silent problem more, and the event of the check that found it."""
    leak = Finding(code="SY450", slug="target_leak", severity=Severity.WARNING, step=1, detail="the target is seen")
    with Journal(run) as journal:
        journal.event("vitals", code=leak.code, slug=leak.slug, step=1, detail=leak.detail, severity="warning")
        journal.incident(
            Incident(number=9, first_step=1, last_step=1, symptom="silent", headline=leak.detail, findings=(leak,))
        )
    return run


def test_a_silent_problem_fails_the_checklist_by_its_name(call: Call, run: Path, tmp_path: Path) -> None:
    spoiled = with_a_silent_problem(copied(run, tmp_path / "run"))
    code, out, _ = call("verify", str(spoiled))
    assert code == 1
    (line,) = [line for line in out.splitlines() if "no silent problem was found" in line]
    assert line.split()[0] == "fail"
    assert "target leak (SY450)" in line


def test_a_silent_problem_is_no_reason_for_a_refused_update(call: Call, run: Path, tmp_path: Path) -> None:
    spoiled = with_a_silent_problem(copied(run, tmp_path / "run"))
    said = "2 of 60 updates refused (loss NaN). 1 silent problem found: target leak (SY450)."
    _, out, _ = call("verify", str(spoiled))
    assert said in out
    for verb in (("watch", "--once"), ("watch",), ("report",)):
        _, out, _ = call(*verb, str(spoiled), *([] if "--once" in verb else ["--json"]))
        assert said in out, verb


def test_a_checkpoint_that_a_trainer_wrote_under_the_guard_is_scanned(call: Call, run: Path, tmp_path: Path) -> None:
    trained = written(tmp_path / "run", [1.0] * 3)
    save_file({"weight": torch.tensor([1.0, math.nan])}, tmp_path / "model.safetensors")
    with Journal(trained) as journal:
        journal.event("checkpoint_saved", path=str(tmp_path / "gone"))
        journal.event("checkpoint_saved", path=str(tmp_path / "model.safetensors"))
    code, out, _ = call("verify", str(trained))
    assert (code, "model.safetensors, weight: " in out) == (1, True)
    (tmp_path / "model.safetensors").unlink()
    code, out, _ = call("verify", str(trained))
    assert f"not known: the trainer's newest checkpoint, {tmp_path / 'model.safetensors'}, is not there" in out


def test_without_a_checkpoint_it_is_said_where_one_was_looked_for(call: Call, tmp_path: Path) -> None:
    _, out, _ = call("verify", str(written(tmp_path / "run", [1.0] * 3)))
    assert f"not known: none is in {tmp_path / 'run' / 'snapshots'} and none of a trainer was recorded" in out
    assert "keeps no checkpoint" not in out


def test_one_of_a_kind_is_said_in_the_singular(call: Call, tmp_path: Path) -> None:
    _, out, _ = call("verify", str(written(tmp_path / "run", [1.0, math.nan], applied=[True, False])))
    assert "1 update; 1 step at which it was not was refused" in out
    assert "1 update is too few to tell" in out
