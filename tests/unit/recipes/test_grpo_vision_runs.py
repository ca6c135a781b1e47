"""The vision task from the warm start to the last reward: kept, resumed, stopped, measured, studied and drawn."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from recipes.grpo.trainer import StableGRPOTrainer, Stopped
from recipes.grpo.vision import study, task, warm_start
from recipes.grpo.vision.picture import picture_of
from recipes.grpo.vision.report import report
from recipes.grpo.vision.settings import Settings
from recipes.grpo.vision.words import make_processor
from safetensors.torch import load_file

import steadygrad as sg

SMALL = Settings(
    vision_width=16, width=32, layers=1, vision_layers=1, mask_width=4, measured_on=8, show=False,
    device="cpu",
    warm_steps=3, loose_steps=1, warm_batch=4, steps=3, prompts=2, generations=2,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, Any]]:
    settings = dataclasses.replace(SMALL, out=tmp_path_factory.mktemp("vision"))
    return settings, task.train(settings)


def test_a_run_makes_every_update_and_keeps_what_it_measured(finished: tuple[Settings, dict[str, Any]]) -> None:
    settings, result = finished
    assert result["warm"]["applied"] == 4
    assert result["grpo"]["applied"] == 3
    assert result["grpo"]["refused"] == 0
    assert result["grpo"]["bad_weights"] == []
    assert [point["step"] for point in result["grpo"]["curve"]] == [1, 2, 3]
    assert set(result["before"]) == {"sampled", "greedy"}
    assert set(result["after"]) == {"sampled", "greedy", "shuffled", "grey"}
    kept = json.loads((settings.out / "result.json").read_text())
    assert kept["after"] == result["after"]
    assert (settings.out / "grpo" / "run" / "run.json").is_file()
    assert (settings.out / "warm" / "run" / "run.json").is_file()


def test_both_logits_processors_stood_in_every_generated_token(finished: tuple[Settings, dict[str, Any]]) -> None:
    _, result = finished
    assert result["grpo"]["logits"]["calls"] >= 2
    assert result["grpo"]["logits"]["nan_occurrences"] == 0


def test_grpo_moves_the_language_model_and_neither_the_mask_head_nor_the_tower(
    finished: tuple[Settings, dict[str, Any]],
) -> None:
    settings, _ = finished
    before = load_file(settings.out / "warm" / "model.safetensors")
    after = load_file(settings.out / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("model.language_model.layers") for name in moved)
    assert not any("mask_head" in name or "vision_tower" in name for name in moved)


def test_what_is_evaluated_later_is_what_was_measured_at_the_end(finished: tuple[Settings, dict[str, Any]]) -> None:
    settings, result = finished
    assert task.evaluate(settings) == result["after"]


def test_a_warm_start_that_is_there_is_not_made_again(
    finished: tuple[Settings, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished
    copied = dataclasses.replace(settings, out=tmp_path, warm_steps=4)
    shutil.copytree(settings.out / "warm", tmp_path / "warm")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the warm start ran again")

    monkeypatch.setattr(warm_start, "supervise", never)
    model, told = warm_start.warm_started(settings, make_processor(settings))
    assert told["applied"] == 4
    kept = load_file(settings.out / "warm" / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    with pytest.raises(AssertionError, match="ran again"):
        warm_start.warm_started(copied, make_processor(copied))


def test_a_warm_start_that_was_stopped_goes_on_to_the_same_weights(
    finished: tuple[Settings, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished
    stopped = dataclasses.replace(settings, out=tmp_path)
    step, seen = sg.Guard.step, []

    def interrupted(guard: Any, batch: Any) -> Any:
        seen.append(batch)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return step(guard, batch)

    monkeypatch.setattr(sg.Guard, "step", interrupted)
    with pytest.raises(Stopped, match="--resume goes on"):
        task.train(stopped)
    model, _ = warm_start.warm_started(dataclasses.replace(stopped, resume=True), make_processor(stopped))
    kept = load_file(settings.out / "warm" / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_grpo_that_was_stopped_goes_on_to_the_same_weights_and_with_the_same_numbers_only(
    finished: tuple[Settings, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, result = finished
    stopped = dataclasses.replace(settings, out=tmp_path)
    shutil.copytree(settings.out / "warm", tmp_path / "warm")
    with monkeypatch.context() as patched:
        loss = StableGRPOTrainer.compute_loss

        def asked(trainer: Any, *given: Any, **options: Any) -> Any:
            trainer.stop.asked = trainer.state.global_step == 1  # as Ctrl-C does
            return loss(trainer, *given, **options)

        patched.setattr(StableGRPOTrainer, "compute_loss", asked)
        with pytest.raises(Stopped, match="after step 2; --resume"):
            task.train(stopped)
    with pytest.raises(sg.UsageError, match="begun with another rate"):
        task.train(dataclasses.replace(stopped, resume=True, rate=0.5))
    again = task.train(dataclasses.replace(stopped, resume=True))
    assert again["after"] == result["after"]
    first, second = load_file(settings.out / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_study_compares_variants_from_one_warm_start(
    finished: tuple[Settings, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, result = finished
    found = study.study(settings.out, ["supervised", "blind", "undirected"], steps=1)
    assert list(found) == ["warm", "recipe", "supervised", "blind", "undirected-warm", "undirected"]
    assert found["warm"]["sampled"] == result["before"]["sampled"]
    assert found["recipe"]["sampled"] == result["after"]["sampled"]
    kept = json.loads((settings.out / "study" / "warm-start" / "warm" / "settings.json").read_text())
    assert (kept["warm_steps"], kept["loose_steps"], kept["loose_truth"]) == (0, 4, 0.0)
    made = study.table(found)
    assert "| GRPO with grey pictures |" in made
    assert made.count("\n") == 7
    assert json.loads((settings.out / "study.json").read_text()) == found
    with pytest.raises(sg.UsageError, match="no finished run"):
        study.settings_of(settings.out / "nowhere")


def test_the_report_has_a_row_a_seed_and_their_mean(finished: tuple[Settings, dict[str, Any]], tmp_path: Path) -> None:
    settings, result = finished
    other = json.loads(json.dumps({**result, "settings": {**result["settings"], "seed": 1}}))
    other["after"]["sampled"]["reward"] = result["before"]["sampled"]["reward"] + 0.5
    (tmp_path / "result.json").write_text(json.dumps(other))
    made = report([settings.out, tmp_path], where="a desk", date="2026-11-15")
    assert "a desk. 2026-11-15." in made
    assert [line.split()[1] for line in made.splitlines() if line.startswith(("| 0 ", "| 1 ", "| mean "))] == [
        "0",
        "1",
        "mean",
    ]
    assert "+0.500)" in made
    with pytest.raises(sg.UsageError, match="no finished run"):
        report([tmp_path / "nowhere"], where="a desk", date="2026-11-15")


def test_progress_is_told_in_words_where_there_is_no_terminal(
    finished: tuple[Settings, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, _ = finished
    shutil.copytree(settings.out / "warm", tmp_path / "warm")
    task.train(dataclasses.replace(settings, out=tmp_path, show=True, steps=10))
    told = capsys.readouterr()
    assert "GRPO: step 10  reward 0." in told.err
    assert "after 10 steps of GRPO: reward 0." in told.out
    assert "with shuffled pictures" in told.out
    assert "gradient norms before clipping" in told.out


def test_the_picture_of_a_run_shows_both_states_of_the_model(finished: tuple[Settings, dict[str, Any]]) -> None:
    settings, _ = finished
    made = picture_of([settings.out], tiles=2)
    assert made.count("data:image/png;base64,") == 4
    assert "after the warm start" in made
    assert "after GRPO" in made


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_reward_rises_by_a_fifth_and_the_masks_do_not_get_worse(tmp_path: Path) -> None:
    result = task.train(Settings(out=tmp_path, show=False))
    before, after = result["before"]["sampled"], result["after"]["sampled"]
    assert after["reward"] >= before["reward"] + 0.2
    assert after["iou"] >= before["iou"]
    assert result["after"]["shuffled"]["reward"] < after["reward"] - 0.2
    assert result["grpo"]["refused"] == 0
