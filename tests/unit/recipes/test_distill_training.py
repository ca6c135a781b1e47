"""Both objectives run under the guard: finite, resumable to the bit, and without the teacher when it breaks down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from recipes.distill import training
from recipes.distill.models import load_student
from recipes.distill.settings import Settings, make_settings
from recipes.distill.text import SAMPLE
from recipes.distill.workbench import Workbench, prepare

from steadygrad.journal import read_incidents, steps_table

TERMS = {"ce", "kd", "anchor", "balance", "entropy"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    text = tmp_path_factory.mktemp("text") / "short.txt"
    text.write_text(SAMPLE.read_text(encoding="utf-8")[:12_000], encoding="utf-8")
    torch.set_num_threads(1)
    settings = make_settings(
        data=str(text), teacher="tiny", vocabulary=300, width=32, layers=1, steps=6, batch_size=2, max_bytes=60,
        eval_every=3, checkpoint_every=2, experts=4, top_k=2, return_after=4,
    )  # fmt: skip
    return prepare(settings)


def run(bench: Workbench, settings: Settings, place: Path, name: str = "kd", **more: Any) -> training.Result:
    pair = more.pop("pair", None) or bench.pair(seed=settings.seed, with_teacher=name == "kd")
    return training.run(
        name, settings, pair, bench.train, bench.validation[:8], 400, run_dir=place, device=bench.device,
        precision=bench.precision, **more,
    )  # fmt: skip


def weights(place: Path) -> dict[str, torch.Tensor]:
    return load_student(place / "best").state_dict()


def test_both_objectives_start_from_the_same_student_and_lower_its_perplexity(bench: Workbench, tmp_path: Path) -> None:
    kd = run(bench, bench.settings, tmp_path / "kd")
    ce = run(bench, bench.settings.ce_only(), tmp_path / "ce", "ce")
    assert kd.curve[0] == ce.curve[0]
    for result in (kd, ce):
        assert [step for step, _ in result.curve] == [0, 3, 6]
        assert result.best == result.curve[-1][1] < result.curve[0][1]
        assert (result.success_rate, result.refused, result.bad_updates, result.halted) == (1.0, 0, 0, "")
        assert 0 < result.largest_norm < 2.0
    assert (ce.router_drift, kd.router_drift > 0) == (0.0, True)


def test_the_terms_add_up_to_the_loss_and_the_control_has_one(bench: Workbench) -> None:
    from recipes.distill.batches import shuffled
    from recipes.distill.objective import make_loss_fn

    batch = next(shuffled(bench.train, batch_size=2, steps=1, seed=0, device=bench.device))
    terms = make_loss_fn(bench.settings)(bench.pair(seed=0, with_teacher=True), batch)
    assert set(terms) == {"loss", *TERMS}
    values = {name: float(term.detach()) for name, term in terms.items()}
    assert values["loss"] == pytest.approx(sum(values[name] for name in TERMS), rel=1e-5)
    alone = make_loss_fn(bench.settings.ce_only())(bench.pair(seed=0, with_teacher=False), batch)
    assert set(alone) == {"loss", "ce"}


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(bench: Workbench, tmp_path: Path) -> None:
    whole = run(bench, bench.settings, tmp_path / "whole")

    def stop(step: int, numbers: dict[str, float]) -> None:
        if step == 4:
            raise KeyboardInterrupt

    stopped = run(bench, bench.settings, tmp_path / "parts", tell=stop)
    assert stopped.interrupted
    again = run(bench, bench.settings, tmp_path / "parts", resume=True)
    assert not again.interrupted
    assert again.curve == whole.curve
    ours, wanted = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


def test_a_teacher_that_breaks_down_is_left_out_and_comes_back(bench: Workbench, tmp_path: Path) -> None:
    """Its logits are NaN for four batches: three are refused, then the text teaches alone, then both again."""
    pair, calls = bench.pair(seed=0, with_teacher=True), [0]
    assert pair.teacher is not None
    place = tmp_path / "run"

    def sometimes_nan(module: Any, given: Any, made: torch.Tensor) -> torch.Tensor:
        # Batches and not calls are what it counts: a refused step is run again to be looked into.
        return made * float("nan") if 3 <= calls[0] < 7 else made

    handle = pair.teacher.get_output_embeddings().register_forward_hook(sometimes_nan)
    settings = replace(bench.settings, steps=14, eval_every=100)

    def count(step: int, numbers: dict[str, float]) -> None:
        calls[0] = step

    try:
        result = run(bench, settings, place, pair=pair, tell=count)
    finally:
        handle.remove()
    table = steps_table(place).to_pylist()
    applied = [row["applied"] for row in table]
    assert applied.count(False) == 3
    with_kd = ["kd" in dict(row["terms"]) for row in table if row["applied"]]
    assert with_kd[:3] == [True] * 3  # before
    assert with_kd[3:7] == [False] * 4  # the text alone, for `return_after` good batches
    assert all(with_kd[7:])
    assert len(with_kd) > 8
    assert (result.refused, result.bad_updates, result.halted) == (3, 0, "")
    assert any("loss term kd is nan" in found.detail for found in read_incidents(place)[0].findings)


def test_norms_above_the_limit_are_refused_and_ten_in_a_row_end_the_run(bench: Workbench, tmp_path: Path) -> None:
    settings = replace(bench.settings, largest_norm=1e-6, steps=30)
    result = run(bench, settings, tmp_path / "run")
    assert result.halted
    assert result.refused == settings.halt_after == 10
    assert result.success_rate == 0.0
    assert result.curve[0][1] == result.best  # nothing was applied: the student is the one it began with


@pytest.mark.gpu
def test_on_a_gpu_the_run_is_fp16_and_its_trained_weights_are_float32(bench: Workbench, tmp_path: Path) -> None:
    again = prepare(replace(bench.settings, precision="auto", steps=40, eval_every=20))
    assert again.precision == "fp16"
    pair = again.pair(seed=0, with_teacher=True)
    assert {p.dtype for p in [*pair.student.parameters(), *pair.routers()]} == {torch.float32}
    result = run(again, again.settings, tmp_path / "run", pair=pair)
    assert (result.refused, result.bad_updates) == (0, 0)
    assert result.best < result.curve[0][1]
    scales = steps_table(tmp_path / "run")["loss_scale"].to_pylist()
    assert all(scale is not None and scale >= 1 for scale in scales)


def test_the_modes_carry_the_numbers_they_are_known_by() -> None:
    careful, balanced = make_settings("ultra_conservative"), make_settings("balanced")
    assert (careful.student_lr, careful.temperature, careful.kd_weight, careful.ce_weight) == (5e-6, 1.5, 0.05, 0.95)
    assert (balanced.student_lr, balanced.temperature, balanced.kd_weight, balanced.ce_weight) == (1e-5, 2.0, 0.1, 0.9)
    for settings in (careful, balanced):
        assert settings.max_grad_norm == 0.5
        assert settings.policy().max_norm_to_apply == 2.0
        assert settings.policy().skip_streak_halt == 10


def test_the_study_trains_every_objective_from_the_same_start(bench: Workbench) -> None:
    from recipes.distill.study import OBJECTIVES, listen, study

    said = listen(bench)
    curves = [
        study(bench, objective, said[objective.match] if objective.match else None, steps=3, seed=0)
        for objective in OBJECTIVES
    ]
    start = run_start(bench)
    assert all(len(curve) == 3 and curve[-1] < start for curve in curves)
    assert len({round(curve[-1], 3) for curve in curves}) == len(OBJECTIVES)


def run_start(bench: Workbench) -> float:
    from recipes.distill.measuring import score_student

    student = bench.pair(seed=0, with_teacher=False).student
    return score_student(student, bench.validation, bench.validation_bytes, device=bench.device).perplexity
