"""The GRPO recipe as a person runs it: the toy learns, resumes, falls ill and is saved, and survives faults."""

from __future__ import annotations

import ast
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import datasets
import pytest
import torch
from recipes.grpo import sick, text, toy
from recipes.grpo.__main__ import main
from recipes.grpo.faults import count_faults
from recipes.grpo.settings import Settings, prepared
from recipes.grpo.statistics import Counted, LogitStatistics
from recipes.grpo.trainer import StableGRPOTrainer, stable_config
from recipes.grpo.training import StopInTime
from recipes.units.conversions import METRIC, questions, split
from transformers import TrainerCallback
from trl import GRPOTrainer
from units_tiny_model import tiny_folder

import steadygrad as sg
from steadygrad.journal import read_incidents, steps_table

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "grpo"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    sg.numerics.board().take()
    yield
    sg.numerics.board().take()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy of the documentation, trained by its command."""
    out = tmp_path_factory.mktemp("toy")
    assert main(["train", "--task", "toy", "--out", str(out)]) == 0
    return out


def weights_in(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


# -- the toy


def test_the_toy_learns_to_say_digits_in_thirty_steps(trained: Path) -> None:
    told = json.loads((trained / "result.json").read_text())
    rewards = [row["reward"] for row in json.loads((trained / "log.json").read_text()) if "reward" in row]
    assert len(rewards) == told["steps"] == 30
    assert rewards[0] < 0.1
    assert rewards[-1] >= 0.6
    assert (told["refused"], told["non_finite_weights"]) == (0, 0)
    assert told["logits"]["calls"] == 30 * toy.SETTINGS.max_tokens  # the processors were inside generation throughout
    assert steps_table(trained / "run").num_rows == 30
    lines = ElementTree.parse(trained / "reward.svg").getroot().iter("{http://www.w3.org/2000/svg}polyline")
    (curve,) = [line for line in lines if line.get("stroke-width") == "3"]
    assert len((curve.get("points") or "").split()) == 30


def test_what_was_trained_is_better_than_what_it_began_as(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["eval", "--task", "toy", "--out", str(trained), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"] < 0.1
    assert told["after"] > 0.6


class StopAfter(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_stopped(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StableGRPOTrainer.train
    with monkeypatch.context() as patched:

        def cut_short(self: StableGRPOTrainer, *args: Any, **kwargs: Any) -> Any:
            self.add_callback(StopAfter(20))
            return whole(self, *args, **kwargs)

        patched.setattr(StableGRPOTrainer, "train", cut_short)
        assert main(["train", "--task", "toy", "--out", str(tmp_path)]) == 0
    assert main(["train", "--task", "toy", "--out", str(tmp_path), "--resume"]) == 0
    expected, found = weights_in(trained / "model"), weights_in(tmp_path / "model")
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_ctrl_c_stops_after_the_step_with_a_checkpoint_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = StableGRPOTrainer.train

    class Interrupt(TrainerCallback):  # type: ignore[misc]
        def __init__(self, trainer: StableGRPOTrainer) -> None:
            self.trainer = trainer

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                self.trainer.stop._ask(2, None)

    def interrupted(self: StableGRPOTrainer, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(Interrupt(self))
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(StableGRPOTrainer, "train", interrupted)
    assert main(["train", "--task", "toy", "--out", str(tmp_path)]) == 130
    assert "Stopped after step 3; --resume goes on" in capsys.readouterr().err
    assert (tmp_path / "checkpoints" / "checkpoint-3" / "model.safetensors").is_file()


# -- the trainer


def small_trainer(kind: Any, path: Path, *, steps: int = 4, **options: Any) -> Any:
    arguments = stable_config(
        path, max_steps=steps, per_device_train_batch_size=8, num_generations=4, max_completion_length=6,
        learning_rate=5e-3, disable_tqdm=True, warmup_steps=0, **options.pop("arguments", {}),
    )  # fmt: skip
    return kind(
        toy.tiny_llama(0), toy.share_of_digits, arguments, train_dataset=toy.prompts(64),
        processing_class=toy.byte_tokenizer(), **options,
    )  # fmt: skip


def test_on_healthy_steps_the_bits_are_those_of_trls_own_trainer(tmp_path: Path) -> None:
    plain = small_trainer(GRPOTrainer, tmp_path / "plain", arguments={"temperature": 0.9})
    plain.train()
    with small_trainer(
        StableGRPOTrainer, tmp_path / "ours", run_dir=tmp_path / "run", arguments={"temperature": 0.9}
    ) as ours:
        ours.train()
        assert ours.guard.summary()["applied"] == 4
        assert ours.logit_statistics.calls == 24
    pairs = zip(plain.model.parameters(), ours.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_settings_are_the_field_reports(tmp_path: Path) -> None:
    arguments = stable_config(tmp_path)
    assert (arguments.max_grad_norm, arguments.warmup_steps, arguments.fp16) == (1.0, 10, False)
    assert arguments.bf16 == (torch.cuda.is_available() and torch.cuda.is_bf16_supported())


def test_a_temperature_near_zero_is_raised_where_it_is_sampled_and_where_it_is_learnt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="steadygrad.numerics")
    trainer = small_trainer(StableGRPOTrainer, tmp_path, arguments={"temperature": 0.01})
    assert trainer.temperature == 0.1  # the loss divides by it
    assert trainer.generation_config.temperature == 1.0  # so that it is not divided by twice
    assert "raised to the minimum" in caplog.text
    trainer.close()


def test_both_monitors_report_in_the_fields_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_trainer(StableGRPOTrainer, tmp_path, steps=10, activations_every=5) as trainer:
        trainer.train()
        assert [report.step for report in trainer.gradients.reports] == [10]
        assert [report.step for report in trainer.activations.reports] == [5, 10]
    printed = capsys.readouterr().out
    for word in ("[step 10] gradient norms", "mean:", "max:", "min:", "NaN count: 0, Inf count: 0"):
        assert word in printed


def test_a_run_that_is_out_of_time_ends_with_the_step_it_is_in(tmp_path: Path) -> None:
    with small_trainer(StableGRPOTrainer, tmp_path, callbacks=[StopInTime(0.0)], monitors=False) as trainer:
        trainer.train()
        assert trainer.state.global_step == 1


# -- statistics


def test_occurrences_are_numbered_with_their_shapes_and_the_maximum_that_was_cut() -> None:
    said: list[str] = []
    seen = LogitStatistics()
    processor = Counted(sg.numerics.NumericalStabilityLogitsProcessor(clip_value=30.0), seen, said.append)
    ids = torch.zeros(2, 5, dtype=torch.long)
    healthy = torch.zeros(2, 7)
    assert processor(ids, healthy) is healthy
    large = healthy.clone()
    large[1, 3] = 45.25
    assert processor(ids, large).abs().max() <= 30.0
    for _ in range(101):
        bad = healthy.clone()
        bad[0, 0] = math.nan
        assert torch.isfinite(processor(ids, bad)).all()
    assert (seen.calls, seen.nan_occurrences, seen.inf_occurrences, seen.clip_occurrences) == (103, 101, 0, 1)
    assert (seen.rows_clipped, seen.rows_repaired, seen.largest_clipped) == (1, 101, 45.25)
    assert len(said) == 3  # the first clip, the first NaN, the hundredth NaN
    assert said[0].splitlines()[0] == "Clipping logits: max=45.25 -> 30.0 (occurrence #1, 1 of 2 rows)"
    assert said[1].splitlines() == [
        "WARNING: NaN detected in logits (occurrence #1)",
        "  Input shape: (2, 5), logits shape: (2, 7)",
    ]
    assert "occurrence #100" in said[2]


# -- sick


def settings_of_sick(steps: int) -> Settings:
    from dataclasses import replace

    return replace(sick.SETTINGS, steps=steps, max_tokens=6)


def test_ill_logits_end_the_plain_run_and_poison_one_with_processors_alone(tmp_path: Path) -> None:
    plain = sick.one_run("plain", settings_of_sick(4), tmp_path)
    assert plain.ended == "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    assert plain.told["steps"] < 4
    limping = sick.one_run("processors", settings_of_sick(4), tmp_path)
    assert limping.ended == "all steps"
    assert limping.told["non_finite_weights"] == len(list(toy.tiny_llama(0, layers=3).parameters()))
    assert limping.told["logits"]["nan_occurrences"] > 0
    assert limping.told["bad_parameters"][0] == "model.embed_tokens.weight"


@pytest.mark.slow
def test_under_guard_the_ill_run_goes_on_and_the_incident_names_the_layer(tmp_path: Path) -> None:
    run = sick.one_run("guarded", settings_of_sick(6), tmp_path)
    assert run.ended == "all steps"
    assert run.told["non_finite_weights"] == 0
    assert run.told["refused"] == run.told["steps_without_finite_loss"] == 1
    incident = read_incidents(tmp_path / "guarded" / "run")[0]
    diagnosis = incident.diagnosis
    assert diagnosis is not None
    assert diagnosis.origin is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "fp16_overflow"
    assert diagnosis.origin.module == f"model.layers.{sick.SICK_LAYER}.mlp"
    assert {"fp32", "bf16"} <= {trial.remedy.slug for trial in diagnosis.trials if trial.verified}
    assert f"born in mul of model.layers.{sick.SICK_LAYER}.mlp" in run.incidents[0]


@pytest.mark.slow
def test_the_table_has_a_line_for_every_run_and_the_guarded_one_learns(tmp_path: Path) -> None:
    assert main(["train", "--sick", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "sick.json").read_text())
    assert told["guarded"]["reward_last"] > 0.6 > told["processors"]["reward_last"]
    assert [told[name]["non_finite_weights"] == 0 for name in sick.RUNS] == [True, False, True, True]
    assert (tmp_path / "sick.md").read_text().count("\n| ") == len(sick.RUNS)


# -- faults


def test_under_faults_nothing_crashes_and_no_update_is_not_finite(tmp_path: Path) -> None:
    told = count_faults(tmp_path, steps=24, rate=0.25, seed=4, show=False)
    assert (told["steps"], told["crashes"], told["non_finite_updates"]) == (24, 0, 0)
    assert told["num_faults"] >= 8
    assert len(told["faults"]) >= 4  # kinds
    assert told["refused"] >= 4
    assert "| non-finite updates | 0 |" in (tmp_path / "faults.md").read_text()


@pytest.mark.slow
def test_five_hundred_steps_under_faults_and_it_still_learns(tmp_path: Path) -> None:
    told = count_faults(tmp_path, steps=500, show=False)
    assert (told["steps"], told["crashes"], told["non_finite_updates"]) == (500, 0, 0)
    assert told["num_faults"] >= 8
    assert len(told["faults"]) >= 4  # kinds0
    assert told["reward_last"] > 0.6


# -- units


def test_a_reply_is_rewarded_for_its_tags_and_for_being_right() -> None:
    said = ["<answer>100</answer>", "<answer>104</answer>", "<answer>106</answer>", "100", "<answer>nan</answer>"]
    assert text.answered(said) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert text.right(said, truth=[100.0] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_no_question_of_the_test_is_ever_sampled() -> None:
    training, testing = text.two_sides(text.QUICK, quick=True)
    assert len(testing) == text.QUICK.questions
    assert not {question.key for question in training} & {question.key for question in testing}
    assert len(training) == len(split(questions(METRIC))[0])


def test_the_text_task_runs_from_a_fresh_adapter_to_its_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ["--task", "text", "--quick", "--out", str(out), "--model", str(tiny_folder(tmp_path))]
    assert main(["train", *given, "--fresh", "--steps", "2", "--batch-size", "8", "--group", "4"]) == 0
    told = json.loads((out / "result.json").read_text())
    assert (told["steps"], told["refused"], told["non_finite_weights"]) == (2, 0, 0)
    assert set(told["scores"]) == {"before", "after"}
    assert (out / "adapter" / "adapter_config.json").is_file()
    assert main(["eval", *given]) == 0


# -- mistakes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["train", "--task", "text", "--start", "nowhere"], "no warm start in nowhere"),
        (["train", "--task", "toy", "--resume"], "nothing to resume"),
        (["train", "--task", "toy", "--steps", "0"], "--steps must be above 0"),
        (["train", "--task", "toy", "--batch-size", "10"], "cannot be cut into groups of 8"),
        (["eval", "--task", "toy"], "no trained model"),
        (["faults", "--rate", "2"], "chance between 0 and 1"),
        (["train", "--task", "vision", "--group", "4"], "--group is not for this task"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    given: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in told
    assert told.startswith("recipes.grpo: ")


def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    prepared(tmp_path, Settings(), resume=False)
    (tmp_path / "checkpoints" / "checkpoint-5").mkdir(parents=True)
    assert prepared(tmp_path, Settings(steps=99), resume=True) is not None
    with pytest.raises(sg.UsageError, match="had other settings"):
        prepared(tmp_path, Settings(learning_rate=1.0), resume=True)


# -- public names


def private_uses(source: str) -> list[str]:
    public, rooms = {*sg.__all__, "numerics", "testing"}, {"steadygrad.numerics", "steadygrad.testing"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "steadygrad":
            if node.module in rooms:
                continue
            found += [node.module] if "." in node.module else [a.name for a in node.names if a.name not in public]
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("steadygrad.")]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sg":
            found += [node.attr] if node.attr not in public else []
    return found


def test_the_recipe_uses_public_names_only_and_the_check_can_fail() -> None:
    files = sorted(RECIPE.rglob("*.py"))
    assert len(files) >= 8
    assert {path.name: private_uses(path.read_text()) for path in files if private_uses(path.read_text())} == {}
    assert private_uses("import steadygrad as sg\nsg.act.x()\nfrom steadygrad.integrations.guard import Guard") != []
