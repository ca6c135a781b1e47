"""Every recipe answers to its bare name with the quick command, and what the guard logs fits a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from recipes import cot, rft, sft
from recipes.common import plots
from recipes.common.speaking import COLUMNS, put_aside, shortened
from recipes.distill.cli import main as distill
from recipes.grpo.__main__ import main as grpo
from recipes.grpo.__main__ import parser as grpo_parser
from recipes.latent_dlm.__main__ import main as latent_dlm
from recipes.latent_dlm.__main__ import parser as latent_dlm_parser
from recipes.units.command import main as units

BY_NAME: dict[str, Callable[[], int]] = {
    "sft": lambda: units(sft.RECIPE, sft.train, []),
    "cot": lambda: units(cot.RECIPE, sft.train, []),
    "rft": lambda: units(rft.RECIPE, rft.train, []),
    "distill": lambda: distill([]),
    "latent_dlm": lambda: latent_dlm([]),
    "grpo": lambda: grpo([]),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_bare_name_prints_three_lines_with_the_quick_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert BY_NAME[name]() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert f"python -m recipes.{name} train --quick" in lines[1]
    assert "--out" in lines[2]
    assert all(len(line) <= COLUMNS + 10 for line in lines)


def test_the_options_have_the_same_names_everywhere() -> None:
    for verb in ("train", "sample", "eval"):
        assert latent_dlm_parser().parse_args([verb, "--out", "x"]).out == Path("x")
        assert latent_dlm_parser().parse_args([verb, "--run-dir", "x"]).out == Path("x")  # as it was called before
    assert latent_dlm_parser().parse_args(["train", "--quick"]).quick
    assert grpo_parser().parse_args(["train", "--clip-value", "20"]).clip_value == 20.0


def test_a_long_line_of_the_log_is_cut_at_a_word() -> None:
    long = "step 2 refused: the loss is nan (" + ", ".join(f"layers.{n}.weight" for n in range(40)) + ")"
    made = shortened(long)
    assert len(made) <= COLUMNS
    assert made.startswith("step 2 refused: the loss is nan (layers.0.weight,")
    assert made.endswith(" ...")
    assert shortened("short\nand simple") == "short and simple"


def test_a_folder_that_no_run_left_is_not_renamed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert put_aside(folder, "run.json") is None
    (folder / "run.json").write_text("{}")
    assert put_aside(folder, "run.json") == tmp_path / "mine-1"


def test_a_curve_of_one_point_is_seen(tmp_path: Path) -> None:
    plots.lines(tmp_path / "a.svg", "one", {"a": [(40.0, 2.0)]})
    plots.lines(tmp_path / "b.svg", "two", {"a": [(40.0, 2.0), (50.0, 1.0)]})
    frame = (tmp_path / "b.svg").read_text().count("<polygon")
    assert (tmp_path / "a.svg").read_text().count("<polygon") == frame + 1
    assert (tmp_path / "b.svg").read_text().count('stroke-width="3"') == 1


def test_a_setting_that_cannot_work_is_named_and_no_missing_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", "--quick", "--steps", "2", "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    assert latent_dlm([*given, "--set", "optimizer.grad_clip_norm=0"]) == 2
    said = capsys.readouterr().err
    assert "norm" in said
    assert "Journal" not in said
