"""The three recipes on a tiny model: every verb, resume, Ctrl-C, the sick configuration, a sentence for a mistake."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import cot, rft, sft
from recipes.units import training
from recipes.units.base_llm import BaseLLM, continued, with_lora
from recipes.units.command import Recipe, main
from recipes.units.conversions import METRIC, drawn, questions, split
from recipes.units.training import Collate, Settings, Stopped, check_labels, fine_tune
from transformers import TrainerCallback
from units_tiny_model import tiny_folder

from steadygrad import UsageError

FAST = ["--quick", "--questions", "4", "--samples", "24", "--max-steps", "3", "--batch-size", "4", "--rank", "2"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def llm_of(tiny: Path, recipe: Recipe = sft.RECIPE) -> BaseLLM:
    return BaseLLM(tiny, instruction=recipe.instruction, dtype=torch.float32)


def rows_of(llm: BaseLLM, count: int, recipe: Recipe = sft.RECIPE) -> list[dict[str, list[int]]]:
    chosen = drawn(split(questions(METRIC[:2]))[0], count, seed=0)
    return llm.rows((str(question), recipe.reply(question)) for question in chosen)


def few(steps: int = 6, **changes: Any) -> Settings:
    given = {
        "batch_size": 4,
        "max_steps": steps,
        "rank": 2,
        "warmup_steps": 1,
        "logging_steps": 1,
        "learning_rate": 1e-3,
    }
    return Settings(**{**given, "gradient_checkpointing": False, **changes})


# -- what a row teaches and what a reply says


def test_a_row_teaches_the_reply_and_its_end_and_nothing_of_the_prompt(tiny: Path) -> None:
    llm = llm_of(tiny)
    (row,) = llm.rows([("Convert 2 kilometer to meter.", "<answer>2000</answer>")])
    taught = [token for token in row["labels"] if token != -100]
    assert llm.tokenizer.decode(taught) == "<answer>2000</answer><|im_end|>"
    assert row["input_ids"][-len(taught) :] == taught
    prompt = llm.tokenizer.decode(row["input_ids"][: -len(taught)])
    assert prompt == f"<|im_start|>{sft.RECIPE.instruction}<|im_end|>" + (
        "<|im_start|>Convert 2 kilometer to meter.<|im_end|><|im_start|>"
    )


def test_padding_is_neither_attended_to_nor_learnt_from() -> None:
    batch = Collate(9)([{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"input_ids": [4], "labels": [4]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["labels"].tolist() == [[-100, 2, 3], [4, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so <answer>75.7</answer>.", 75.7),
        ("<answer> 1,200 </answer>", 1200.0),
        ("<answer>-1.5e3</answer>", -1500.0),
        ("<answer>.5</answer> <answer>9</answer>", 0.5),
        ("75.7", None),
        ("<answer>many</answer>", None),
        ("<answer>1e999</answer>", None),
        ("<answer>5", None),
    ],
)
def test_answers_are_read_from_their_tags(text: str, number: float | None) -> None:
    assert BaseLLM.answer_in(text) == number


def test_a_batch_of_questions_is_answered_as_each_alone(tiny: Path) -> None:
    llm = llm_of(tiny)
    asked = ["Convert 2 meter to centimeter.", "Convert 990 centimeter to millimeter.", "Hi"]
    together = llm.generate(asked, max_new_tokens=6)
    alone = [llm.generate([question], max_new_tokens=6)[0] for question in asked]
    assert together == alone
    sampled = llm.generate(asked[:2], max_new_tokens=6, temperature=1.0, samples=3, batch_size=3)
    assert [len(replies) for replies in sampled] == [3, 3]


def test_worked_steps_come_before_the_same_answer() -> None:
    question = drawn(questions(METRIC), 1, seed=3)[0]
    said = cot.reply(question)
    assert said.startswith(f"1 {question.unit} = ")
    assert BaseLLM.answer_in(said) == pytest.approx(question.truth, rel=0.02)


# -- the verbs


def test_train_test_and_load_work_on_one_folder(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--model", str(tiny), "--out", str(tmp_path / "run"), "--json"]
    assert main(sft.RECIPE, sft.train, ["train", *FAST, *shared]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["trained"]["steps"] == 3
    assert trained["trained"]["non_finite_weights"] == 0
    assert trained["trained"]["refused"] == 0
    assert trained["trained"]["selftest"] in ("fit", "doubtful")
    assert set(trained["scores"]) == {"before", "after"}
    for name in ("adapter/adapter_config.json", "result.json", "result.md", "scores.svg", "loss.svg", "run/run.json"):
        assert (tmp_path / "run" / name).is_file(), name
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    assert main(sft.RECIPE, sft.train, ["test", "--quick", "--questions", "4", *shared]) == 0
    assert json.loads(capsys.readouterr().out)["after"]["questions"] == 4
    assert main(sft.RECIPE, sft.train, ["load", "47", "mile", "kilometer", *shared]) == 0
    assert json.loads(capsys.readouterr().out)["truth"] == pytest.approx(75.639, rel=1e-4)


def test_what_was_sampled_right_is_what_rft_trains_on(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that has learnt one reply by heart gives it back; a wrong one is not kept."""
    llm = llm_of(tiny, rft.RECIPE)
    known, other = drawn(split(questions(METRIC[:1]))[0], 2, seed=1)
    reply = f"<answer>{known.answer}</answer>"
    batch = Collate(2)(llm.rows((str(q), reply) for q in (known, other)))
    optimizer = torch.optim.AdamW(llm.model.parameters(), lr=3e-3)
    llm.model.train()
    for _ in range(400):
        loss = llm.model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 0.01:
            break
    assert known.answer != other.answer
    kept = rft.sampled(llm, [known, other], tries=3, temperature=0.2, max_new_tokens=30)
    assert kept == [(str(known), reply)]
    assert "1 replies are too few to learn from" in capsys.readouterr().out
    with pytest.raises(UsageError, match="Not one sampled reply was right"):
        rft.sampled(llm, [other], tries=2, temperature=0.2, max_new_tokens=30)


def test_rft_goes_on_from_the_adapter_that_sampled(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--model", str(tiny), *FAST]
    assert main(cot.RECIPE, sft.train, ["train", *shared, "--out", str(tmp_path / "cot")]) == 0
    monkeypatch.setattr(rft, "sampled", lambda llm, asked, *rest: [(str(q), cot.reply(q)) for q in asked])
    words = ["train", *shared, "--start", str(tmp_path / "cot"), "--out", str(tmp_path / "rft"), "--json"]
    capsys.readouterr()
    assert main(rft.RECIPE, rft.train, words) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["scores"]) == {"start", "after"}
    # Three steps with a log every four: the trainer logs no loss, and the guard recorded all of them.
    assert result["trained"]["first_loss"] > 0
    assert result["trained"]["last_loss"] > 0
    metrics = json.loads((tmp_path / "rft" / "run" / "metrics.json").read_text())
    assert metrics == {name: result["scores"]["after"][name] for name in ("accuracy", "answer_rate")}
    assert len((tmp_path / "rft" / "kept.jsonl").read_text().splitlines()) == 24
    llm = llm_of(tiny)
    start = continued(llm.model, tmp_path / "cot" / "adapter").state_dict()
    ended = continued(llm_of(tiny).model, tmp_path / "rft" / "adapter").state_dict()
    moved = [float((start[name] - ended[name]).abs().max()) for name in start if "lora_B" in name]
    assert 0 < max(moved) < 0.05


# -- stopping and going on


class CtrlC(TrainerCallback):
    """Somebody presses Ctrl-C in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def test_a_run_stopped_by_ctrl_c_ends_where_it_would_have(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path, *, resume: bool = False) -> dict[str, torch.Tensor]:
        llm = llm_of(tiny)
        torch.manual_seed(5)
        model = with_lora(llm.model, rank=2)
        fine_tune(model, llm, rows_of(llm, 24), few(6), out, resume=resume)
        return trained_weights(model)

    whole = run(tmp_path / "whole")
    make = training.Trainer

    def interrupted(**given: Any) -> Any:
        return make(**{**given, "callbacks": [*given["callbacks"], CtrlC(2)]})

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(training, "Trainer", interrupted)
        with pytest.raises(Stopped, match=r"after step 3; --resume"):
            run(tmp_path / "stopped")
    assert signal.getsignal(signal.SIGINT) is handler
    assert (tmp_path / "stopped" / "checkpoints" / "checkpoint-3").is_dir()
    resumed = run(tmp_path / "stopped", resume=True)
    for name, weight in whole.items():
        assert torch.equal(resumed[name], weight), name


def test_resuming_nothing_or_something_else_is_refused(tiny: Path, tmp_path: Path) -> None:
    llm = llm_of(tiny)
    model = with_lora(llm.model, rank=2)
    with pytest.raises(UsageError, match="nothing to resume"):
        fine_tune(model, llm, rows_of(llm, 8), few(2), tmp_path / "new", resume=True)
    fine_tune(model, llm, rows_of(llm, 8), few(2, epochs=1.0), tmp_path / "run")
    with pytest.raises(UsageError, match="other settings"):
        fine_tune(model, llm, rows_of(llm, 8), few(4), tmp_path / "run", resume=True)


# -- what is checked first, and how a mistake is told


def test_rows_that_teach_nothing_are_refused_before_training(tiny: Path, tmp_path: Path) -> None:
    llm = llm_of(tiny)
    rows = [{**row, "labels": [-100] * len(row["labels"])} for row in rows_of(llm, 8)]
    with pytest.raises(UsageError, match="PF501"):
        check_labels(rows, training.arguments_for(few(), tmp_path), llm)
    with pytest.raises(UsageError, match="no rows to train on"):
        fine_tune(llm.model, llm, [], few(), tmp_path)


def test_a_set_up_that_cannot_train_fails_the_self_test(tiny: Path) -> None:
    llm = llm_of(tiny)
    model = with_lora(llm.model, rank=2)
    with torch.no_grad():
        next(weight for weight in model.parameters() if weight.requires_grad).fill_(float("nan"))
    with pytest.raises(UsageError, match="self-test failed"):
        training.self_test(model, rows_of(llm, 4), few(), Collate(2))


def mistake(words: list[str], capsys: pytest.CaptureFixture[str], recipe: Recipe = sft.RECIPE) -> str:
    train = rft.train if recipe is rft.RECIPE else sft.train
    assert main(recipe, train, words) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith(f"recipes.{recipe.name}: ")
    return told


def test_mistakes_are_told_in_one_sentence(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--model", str(tiny), "--out", str(tmp_path / "run")]
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "no unit pair" in mistake(["train", "--units", str(empty), *shared], capsys)
    assert "no questions left" in mistake(["train", "--samples", "0", *shared], capsys)
    assert "There is no model at" in mistake(["train", "--model", str(tmp_path / "gone.gguf")], capsys)
    assert "--batch-size must be above 0" in mistake(["train", "--batch-size", "0", *shared], capsys)
    assert "no trained adapter" in mistake(["test", *shared], capsys)
    assert "pint does not know" in mistake(["load", "1", "florb", "meter", *shared], capsys)
    assert "not a number" in mistake(["load", "some", "mile", "meter", *shared], capsys)
    assert "no trained adapter" in mistake(["train", "--start", str(tmp_path), *shared], capsys, rft.RECIPE)
    assert "--temperature" in mistake(["train", "--temperature", "0", *shared], capsys, rft.RECIPE)


# -- the sick configuration


def test_the_sick_configuration_dies_alone_and_is_named_and_cured_under_guard(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--sick", "--model", str(tiny), "--out", str(tmp_path), "--json"]
    assert main(sft.RECIPE, sft.train, words) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["loss"], row["grad_norm"]) for row in result["plain"][1:]] == [("0.0", "nan")] * 7
    assert result["cause"] == "optimizer_eps_underflow"
    for word in ("AdamW", "eps=1e-08", "float16", "optimizer"):
        assert word in result["incident"]
    assert {"fp32", "optimizer_eps"} <= set(result["verified"])
    assert result["applied_remedy"] == "fp32"
    assert result["non_finite_weights"] == result["cured_refused"] == 0
    assert len(result["cured"]) >= 4
    assert all(float(row["loss"]) < 10 and float(row["grad_norm"]) < 10 for row in result["cured"])
