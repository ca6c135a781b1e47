"""The latent diffusion language model as a person runs it: train, resume, recover, sample, measure, and fall ill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from recipes.common.speaking import put_aside
from recipes.latent_dlm import training
from recipes.latent_dlm.__main__ import main
from recipes.latent_dlm.config import Config, load
from recipes.latent_dlm.model import MMDiT
from recipes.latent_dlm.pace import measure_pace, plain_step
from recipes.latent_dlm.picture import draw
from recipes.latent_dlm.prepared import Batch, Prepared, Split, batches, prepare
from recipes.latent_dlm.sick import compare
from recipes.latent_dlm.training import Result, ValidationLog, make_schedule, train
from torch import nn

import steadygrad as sg
from steadygrad.journal import read_incidents

SMALLER = [
    "data.seq_len=12", "data.vocab_size=400", "data.max_sentences=200", "data.val_sentences=40",
    "latent.encoder=projection", "latent.dim=16", "model.hidden_size=32", "model.n_blocks=2", "model.n_heads=2",
    "model.mlp_hidden=64", "model.latent_tokens=2", "training.train_batch_size=8", "training.num_train_steps=30",
    "training.warmup_steps=5",
    "training.eval_every=10", "training.save_steps=10",
]  # fmt: skip


def smaller(*changes: str) -> Config:
    return load("tiny", [*SMALLER, *changes])[0]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(smaller(), tmp_path_factory.mktemp("cache"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(data: Prepared, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, nn.Module, Path]:
    """A run of thirty steps that nothing disturbed."""
    run_dir = tmp_path_factory.mktemp("whole")
    return *train(smaller(), data, run_dir, show=False), run_dir


def test_both_losses_fall_and_no_update_is_lost(whole: tuple[Result, nn.Module, Path]) -> None:
    result, model, _ = whole
    assert result.guard["applied"] == 30
    assert result.guard["skipped"] == 0
    assert result.last["text"] < 0.95 * result.first["text"]
    assert result.last["latent"] < result.first["latent"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())


def test_the_log_has_a_line_a_step_for_the_reports_way_of_plotting(whole: tuple[Result, nn.Module, Path]) -> None:
    run_dir = whole[2]
    losses = []
    with (run_dir / "training_log.jsonl").open() as file:
        for line in file:
            losses.append(json.loads(line)["loss"])
    assert len(losses) == 30
    assert all(loss > 0 for loss in losses)
    first = lines(run_dir / "training_log.jsonl")[0]
    assert math.isclose(first["loss"], first["text"] + first["latent"], rel_tol=1e-5)
    assert [line["step"] for line in lines(run_dir / "validation.jsonl")] == [0, 10, 20, 30]


def test_a_guarded_run_has_the_very_weights_of_the_plain_loop(data: Prepared, tmp_path: Path) -> None:
    config = smaller("training.num_train_steps=12")
    _, guarded = train(config, data, tmp_path, show=False)
    torch.manual_seed(config.training.seed)
    plain = MMDiT(config)
    step = plain_step(plain, config, "cpu")
    for _, batch in zip(range(12), batches(data.train, 8, seed=config.training.seed), strict=False):
        step(batch)
    for one, other in zip(guarded.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_that_was_stopped_ends_with_the_same_weights_when_resumed(
    data: Prepared, whole: tuple[Result, nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, model, _ = whole

    def pulled_out(*args: Any, **options: Any) -> Iterator[Batch]:
        for number, batch in enumerate(batches(*args, **options)):
            if number == 17:
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(training, "batches", pulled_out)
        stopped, _ = train(smaller(), data, tmp_path / "stopped", show=False)
    assert stopped.interrupted
    assert stopped.guard["applied"] == 17
    assert (tmp_path / "stopped" / "model.safetensors").is_file()
    resumed, again = train(smaller(), data, tmp_path / "stopped", resume=True, show=False)
    assert not resumed.interrupted
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resumed.last["text"] == undisturbed.last["text"]
    assert [line["step"] for line in lines(tmp_path / "stopped" / "training_log.jsonl")] == list(range(30))
    # The line of step 17 was written when it was stopped; the run went back to step 10 and wrote on from there.
    assert [line["step"] for line in lines(tmp_path / "stopped" / "validation.jsonl")] == [0, 10, 20, 30]


def test_accumulated_batches_make_one_update(data: Prepared, tmp_path: Path) -> None:
    config = smaller("training.num_train_steps=3", "training.gradient_accumulation_steps=2", "training.dtype=bf16")
    result, _ = train(config, data, tmp_path, show=False)
    assert result.guard["applied"] == 3
    assert result.last["step"] == 3


def broken_from(data: Prepared, first: int, last: int, batch_size: int = 8) -> Prepared:
    """The data, with the latents of the sentences of some batches NaN."""
    latents = data.train.latents_ND.clone()
    for number, batch in enumerate(batches(data.train, batch_size, seed=0)):
        if number > last:
            break
        if number >= first:
            latents[batch["sentence"]] = math.nan
    return Prepared(
        data.tokenizer, data.scale, data.encoder, Split(data.train.sentences, data.train.tokens_NT, latents), data.val
    )


def test_a_bad_batch_is_refused_and_the_term_is_named(data: Prepared, tmp_path: Path) -> None:
    result, model = train(smaller("training.num_train_steps=15"), broken_from(data, 12, 12), tmp_path, show=False)
    assert result.guard["skipped"] == 1
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    named = next(found for found in read_incidents(tmp_path)[0].findings if found.code == "SY102")
    assert named.evidence["terms"] == ["text", "latent"]  # joint attention: a broken latent breaks both
    assert lines(tmp_path / "training_log.jsonl")[12]["loss"] is None


def test_a_halted_run_recovers_from_its_last_good_checkpoint_behind_the_bad_batches(
    data: Prepared, tmp_path: Path
) -> None:
    # The guard itself goes back and around a few bad batches; after forty in a row it gives up. None of them comes
    # again: an epoch has eighty batches.
    config = smaller("training.num_train_steps=20", "training.save_steps=4", "training.train_batch_size=2")
    result, model = train(config, broken_from(data, 5, 44, batch_size=2), tmp_path, show=False)
    assert result.recoveries == 1
    assert [line["step"] for line in lines(tmp_path / "validation.jsonl")] == [0, 10, 20]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    assert result.last["text"] < result.first["text"]


def test_a_run_whose_every_batch_is_bad_ends_with_the_guards_own_error(data: Prepared, tmp_path: Path) -> None:
    config = smaller("training.max_recoveries=1")
    with pytest.raises(sg.TrainingHalted):
        train(config, broken_from(data, 0, 19), tmp_path, show=False)
    assert len(lines(tmp_path / "training_log.jsonl")) >= 10


def test_a_second_run_does_not_mix_with_the_first(tmp_path: Path) -> None:
    assert put_aside(tmp_path / "tiny", "run.json") is None
    for wanted in ("tiny-1", "tiny-2"):
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "run.json").write_text("{}")
        assert put_aside(tmp_path / "tiny", "run.json") == tmp_path / wanted
        assert (tmp_path / wanted / "run.json").is_file()


def test_going_back_takes_later_lines_of_the_validation_log_back(tmp_path: Path) -> None:
    log = ValidationLog(tmp_path / "v.jsonl", keep=False)
    for step in (0, 10, 20):
        log.add(step, {"text": 2.0, "latent": 1.0})
    log.rewind(15)
    assert [line["step"] for line in lines(tmp_path / "v.jsonl")] == [0, 10]
    assert ValidationLog(tmp_path / "v.jsonl", keep=True).has(10)
    assert not ValidationLog(tmp_path / "v.jsonl", keep=False).has(10)


def test_the_learning_rate_warms_up_and_falls_to_a_twentieth() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(optimizer, smaller())
    rates = []
    for _ in range(31):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[30] == pytest.approx(0.05)


# -- the command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_train_sample_and_eval_work_one_after_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [part for change in SMALLER for part in ("--set", change)]
    code, out, _ = run(capsys, "train", "--config", "tiny", *settings, "--steps", "12", "--seed", "3", "--json")
    assert code == 0
    made = json.loads(out)
    assert made["applied"] == 12
    code, out, _ = run(capsys, "sample", *settings, "--count", "2", "--like", "a small dog", "--json")
    assert code == 0
    assert len(json.loads(out)["texts"]) == 2
    code, out, _ = run(capsys, "eval", *settings, "--count", "10")
    assert code == 0
    assert "text from latent is nearer its own than a random one" in out
    assert json.loads((tmp_path / "runs/recipes/latent_dlm/tiny/eval.json").read_text())["sentences"] == 10


def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "train", "--config", "none")
    assert (code, "There is no configuration 'none'" in err) == (2, True)
    settings = [part for change in SMALLER for part in ("--set", change)]
    code, _, err = run(capsys, "sample", *settings)
    assert (code, "holds no trained model" in err) == (2, True)


# -- illness


def test_zeroing_nan_gradients_wastes_every_step_after_the_first_and_the_guarded_run_goes_on(
    data: Prepared, tmp_path: Path
) -> None:
    config = smaller("training.num_train_steps=30")
    made = compare("zero-latent", config, data, tmp_path, show=False)
    plain, zeroing, guarded = made.loops
    json.dumps(made.plain(), allow_nan=False)
    first = plain.first_bad
    assert first is not None
    assert plain.wasted == zeroing.wasted == 30 - first
    assert plain.bad_tensors > zeroing.bad_tensors == 2  # the running statistics hold the NaN that the gradients do not
    assert guarded.first_bad == first
    assert 1 <= guarded.wasted == guarded.refused <= 3
    assert guarded.bad_tensors == 0
    assert guarded.text_after < guarded.text_before
    assert "text is nan" in guarded.first_incident
    assert "zero_division" in guarded.cause


@pytest.mark.slow
def test_a_time_that_rounds_to_one_costs_the_guarded_run_that_batch_alone(data: Prepared, tmp_path: Path) -> None:
    config = smaller("training.num_train_steps=60", "training.train_batch_size=16")
    plain, _, guarded = compare("rounding", config, data, tmp_path, show=False).loops
    assert plain.first_bad is not None
    assert plain.wasted == 60 - plain.first_bad
    assert guarded.first_bad == plain.first_bad
    assert 1 <= guarded.wasted <= 10
    assert guarded.bad_tensors == 0
    assert "loss term text is nan; finite: latent" in guarded.first_incident


@pytest.mark.slow
def test_an_infinite_gradient_norm_gets_past_a_look_for_nan(data: Prepared, tmp_path: Path) -> None:
    config = smaller("training.num_train_steps=12", "model.n_blocks=1")
    plain, zeroing, guarded = compare("unnormalised", config, data, tmp_path, show=False).loops
    assert zeroing.bad_tensors > 0
    assert zeroing.wasted > 0
    assert zeroing.wasted == 12 - (zeroing.first_bad or 0)
    assert plain.bad_tensors > 0
    assert guarded.bad_tensors == 0
    assert guarded.wasted == 0


# -- pace and picture


def test_pace_times_both_loops_in_turns(data: Prepared) -> None:
    pace = measure_pace(smaller(), data, device="cpu", rounds=2, steps=1, warmup=1)
    assert pace["rounds"] == 2
    assert pace["plain_ms"] > 0
    assert pace["ratio"] > 0
    with pytest.raises(sg.UsageError, match="without accumulation"):
        measure_pace(smaller("training.gradient_accumulation_steps=2"), data, device="cpu")


def test_the_picture_shows_both_losses_and_the_samples() -> None:
    validation = [{"step": step, "text": 7 - step / 20, "latent": 1 - step / 100} for step in (0, 10, 20)]
    svg = draw(
        "tiny",
        validation,
        [("a small dog", "a little <dog>\x08")],
        {"zeroing": [3.0, None, None], "guarded": [3.0, None, 2.0]},
    )
    assert svg.startswith("<svg ")
    assert svg.count("<polyline") == 3  # two losses, and the guarded run; one point makes no line
    assert "a little &lt;dog&gt;" in svg
    ElementTree.fromstring(svg)
