"""`python -m recipes.distill`: what it prints, what it leaves, and one clear sentence for what it cannot use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from recipes.distill import training
from recipes.distill.cli import main
from recipes.distill.text import SAMPLE, read_corpus
from recipes.distill.training import read_result

SMALL = [
    "--teacher",
    "tiny",
    "--vocabulary",
    "300",
    "--width",
    "32",
    "--layers",
    "1",
    "--batch-size",
    "2",
    "--max-bytes",
    "60",
    "--experts",
    "4",
    "--top-k",
    "2",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("text") / "short.txt"
    file.write_text(SAMPLE.read_text(encoding="utf-8")[:9_000], encoding="utf-8")
    return str(file)


def test_train_leaves_a_table_of_both_objectives_and_eval_measures_the_same(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    train = ["train", "--out", str(out), "--data", text, "--steps", "4", "--eval-every", "2", "--json", *SMALL]
    assert main([*train, "--seed", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(result["name"], result["seed"]) for result in told["results"]] == [("ce", 3), ("kd", 3)]
    assert told["comparison"]["seeds"] == 1
    assert "| kd " in (out / "table.md").read_text(encoding="utf-8")
    picture = (out / "perplexity.svg").read_text(encoding="utf-8")
    assert picture.count('stroke-width="3"') == 2
    assert "with the teacher" in picture

    assert main(["eval", str(out), "--json"]) == 0
    scores = {score["run"]: score["perplexity"] for score in json.loads(capsys.readouterr().out)}
    best = {f"seed-3/{result['name']}": result["best"] for result in told["results"]}
    assert scores == pytest.approx(best, rel=1e-4)

    assert main(["train", "--out", str(out), "--resume", "--json"]) == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out)["results"] == told["results"]

    assert main([*train, "--seed", "3"]) == 0  # a second run puts the first aside, and is not added to it
    said = capsys.readouterr().err
    assert f"the run that was in {out} is now in {tmp_path / 'run-1'}" in said.replace("\n", " ")
    assert read_result(tmp_path / "run-1" / "seed-3" / "kd") is not None
    lines = [line for line in said.splitlines() if line.startswith("kd seed 3 step ")]
    assert [re.sub(r"\d+\.\d+", "N", line) for line in lines] == [
        f"kd seed 3 step {step}: loss N (kd N, ce N)  perplexity N  success N %  new best" for step in (2, 4)
    ]
    assert "success 100.0 %" in lines[0]
    assert all(len(line) <= 100 for line in lines)
    assert "| 100.0 % |" in (out / "table.md").read_text(encoding="utf-8")
    metrics = json.loads((out / "seed-3" / "kd" / "metrics.json").read_text(encoding="utf-8"))
    assert [step for step, _ in metrics["perplexity"]] == [0, 2, 4]


def test_ctrl_c_leaves_runs_that_can_be_resumed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    plain = training.shuffled

    def interrupted(*rows: Any, **how: Any) -> Iterator[Any]:
        for number, batch in enumerate(plain(*rows, **how)):
            if number == 3:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(training, "shuffled", interrupted)
    given = ["--out", str(out), "--data", text, "--steps", "5", "--eval-every", "5", "--checkpoint-every", "2"]
    assert main(["train", "--json", *given, *SMALL]) == 130
    told = capsys.readouterr()
    assert f"train --out {out} --resume" in told.err
    assert [result["interrupted"] for result in json.loads(told.out)["results"]] == [True]
    monkeypatch.undo()
    assert main(["train", "--json", "--out", str(out), "--resume"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(result["name"], result["curve"][-1][0]) for result in results] == [("ce", 5), ("kd", 5)]


def test_the_sick_configuration_dies_in_the_plain_loop_and_is_explained_under_the_guard(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--sick", "--json", "--data", text, "--out", str(tmp_path / "run"), *SMALL]) == 0
    found = json.loads(capsys.readouterr().out)
    first, *others = found["plain"]
    assert "nan" not in first
    assert set(others) == {"Numerical issue: total_loss=nan, kd=0.0000, ce=nan"}
    assert found["bad_weights_plain"] > 0
    assert found["bad_weights_guarded"] == 0
    assert found["cause"] == "DX103 optimizer_eps_underflow"
    assert any("eps" in remedy for remedy in found["remedies"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "no/such/text.txt"], "cannot be read: No such file"),
        (["--teacher", "./no-such-model"], "There is no model at ./no-such-model"),
        (["--top-k", "9"], "top_k must lie between 1 and 8"),
        (["--ce-weight", "0"], "would learn nothing"),
        (["--teacher", "tiny", "--vocabulary", "100"], "vocabulary of 100 is too small"),
        (["--teacher", "tiny", "--student", "no/such/student"], "no tokenizer.json in no/such/student"),
        (["--teacher", "tiny", "--resume"], "There is no run in"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("content", "words"), [(b"", "too little text"), (b"\xff\xfe\x00bad", "is not UTF-8")])
def test_text_that_cannot_be_used_is_named(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    given = ["train", "--teacher", "tiny", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run")]
    assert main(given) == 2
    assert words in capsys.readouterr().err


def test_an_unreadable_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{not json")
    assert main(["train", "--teacher", str(tmp_path / "model"), "--out", str(tmp_path / "run")]) == 2
    assert "cannot be loaded" in capsys.readouterr().err


def test_eval_without_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path)]) == 2
    assert "There is no run in" in capsys.readouterr().err


def test_no_passage_is_both_learnt_and_measured() -> None:
    corpus = read_corpus(None)
    assert len(corpus.train) > 200
    assert set(corpus.train).isdisjoint(corpus.validation)
    assert max(len(passage.encode()) for passage in corpus.train) <= 400
    assert math.isclose(len(corpus.validation) / len(corpus.train), 1 / 9, rel_tol=0.05)
