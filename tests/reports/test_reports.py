"""The loops and configurations of the field reports: what the doctor and `steady run` must say of each.

The programs are small ones with the reports' structure. Each has one fault at a known line and, where the fault is in
the data, at a known row; the tests state what has to be reported of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from steadygrad.checkup.doctor import doctor_files
from steadygrad.records.checks.checkup import Level

PROGRAMS = Path(__file__).parent / "programs"
STEADY = [sys.executable, "-m", "steadygrad.commands"]
LONG = pytest.mark.slow  # the rows of docs/reports.md run the same programs


def line_of(program: str, text: str) -> int:
    """The line that holds the text; it must be one."""
    (found,) = [number for number, line in enumerate((PROGRAMS / program).read_text().splitlines(), 1) if text in line]
    return found


def told(*programs: str) -> dict[tuple[str, str, int], Level]:
    """What the doctor says of files or folders: code, file and line, with its level."""
    found = doctor_files([PROGRAMS / program for program in programs])
    return {(each.code, str(Path(each.path).relative_to(PROGRAMS)), each.line): each.level for each in found.advice}


@dataclass
class Ran:
    """A program under `steady run`."""

    code: int
    out: str
    err: str
    incidents: list[dict[str, Any]]


def run(program: str, folder: Path, *words: str) -> Ran:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    runs = folder / "run"
    done = subprocess.run(
        [*STEADY, "run", "--run-dir", str(runs), str(PROGRAMS / program), *words], env=environment, check=False,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    listed = subprocess.run([*STEADY, "incidents", str(runs), "--json"], capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr, json.loads(listed.stdout)["incidents"])


def diagnosed(incident: dict[str, Any]) -> tuple[str, str]:
    """The code of the cause, and `file:line` of where the first bad value was computed."""
    diagnosis = incident.get("diagnosis") or {}
    place = str((diagnosis.get("origin") or {}).get("source", ""))
    return (diagnosis.get("cause") or {}).get("code", ""), place.rpartition("/")[2]


# -- the model class that loads float16, and its TrainingArguments


def test_the_doctor_follows_a_dtype_into_the_class_of_another_file() -> None:
    found = told("half_model/sft.py")
    loads = line_of("half_model/base_llm.py", "AutoModelForCausalLM.from_pretrained")
    assert found[("PF101", "half_model/base_llm.py", loads)] is Level.ERROR
    # One epoch keeps one checkpoint: whether an older one is missed is not shown, so it is a note.
    assert found[("PF304", "half_model/sft.py", line_of("half_model/sft.py", "save_total_limit=1"))] is Level.NOTE


def test_the_repaired_model_class_is_not_reported(tmp_path: Path) -> None:
    for name in ("base_llm.py", "sft.py"):
        text = (PROGRAMS / "half_model" / name).read_text()
        text = text.replace('BaseLLM(tiny_checkpoint(folder + "/base"))', 'BaseLLM("x", use_fp32_for_training=True)')
        (tmp_path / name).write_text(text.replace("fp16=torch.cuda.is_available()", "fp16=False"))
    assert "use_fp32_for_training=True" in (tmp_path / "sft.py").read_text()
    assert "PF101" not in {each.code for each in doctor_files([tmp_path]).advice}


def test_float16_weights_that_an_update_makes_nan_are_refused_with_their_cause(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ran = run("half_model/sft.py", tmp_path, str(tmp_path), "--as-on-a-gpu")
    (incident,) = ran.incidents
    assert incident["symptom"] == "nan_param"
    assert diagnosed(incident)[0] == "DX103"
    assert "PF101 fp16_weights_trained" in ran.out + ran.err
    assert "0 of 6 updates applied, 6 refused" in ran.out + ran.err


# -- the distillation loop that skips by itself


def test_the_distillation_loop_is_checked_and_has_no_finding_that_is_wrong() -> None:
    assert told("distillation/train.py") == {}


def test_a_batch_that_the_distillation_loop_skips_is_an_incident_with_its_samples(tmp_path: Path) -> None:
    ran = run("distillation/train.py", tmp_path)
    assert (ran.code, "CE loss issue" in ran.out, "done" in ran.out) == (0, True, True)
    (incident,) = ran.incidents
    assert (incident["symptom"], incident["first_step"]) == ("nan_loss", 9)
    assert "skipped by the program" in incident["headline"]
    assert "15 updates, none refused, 1 skipped by the program" in ran.out + ran.err
    assert diagnosed(incident)[0] == "DX401"
    assert "holds 1e+30 in rows [1]" in incident["diagnosis"]["because"]  # the second row of batch 9 is row 37
    assert incident["diagnosis"]["sample_ids"] == ["37"]


# -- the loop with an empty mask: as it was, as it was repaired, and with the norm checked only


DIVIDES = "/ text_mask.sum()"


def test_the_doctor_finds_the_loop_that_sets_gradients_to_zero_and_goes_on() -> None:
    program = "latents/zero_and_go_on.py"
    found = told(program)
    assert found[("PF306", program, line_of(program, "param.grad.data.zero_()"))] is Level.WARNING
    assert found[("PF204", program, line_of(program, "1e6"))] is Level.NOTE


def test_the_doctor_finds_the_division_and_the_latents_in_the_trainer() -> None:
    found = told("latents")
    assert found[("PF403", "latents/common.py", line_of("latents/common.py", DIVIDES))] is Level.WARNING
    assert found[("PF411", "latents/common.py", line_of("latents/common.py", "F.mse_loss"))] is Level.NOTE


@pytest.mark.parametrize("program", ["latents/repaired.py", "latents/norm_only.py"])
def test_the_repaired_loops_are_checked_and_have_no_finding(program: str) -> None:
    assert told(program) == {}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param("latents/zero_and_go_on.py", "15 of 16 updates applied, 1 refused (step 5)", marks=LONG),
        ("latents/repaired.py", "15 updates, none refused, 1 skipped by the program"),
        pytest.param("latents/norm_only.py", "15 updates, none refused, 1 skipped by the program", marks=LONG),
    ],
)
def test_the_empty_mask_is_diagnosed_in_every_form_of_the_loop(tmp_path: Path, program: str, words: str) -> None:
    ran = run(program, tmp_path)
    assert ran.code == 0
    assert words in ran.out + ran.err
    (incident,) = ran.incidents
    assert (incident["symptom"], incident["first_step"]) == ("nan_loss", 5)
    assert diagnosed(incident) == ("DX201", f"common.py:{line_of('latents/common.py', DIVIDES)}")
    assert "samples 20, 21, 22, 23" in ran.out + ran.err


def test_the_nested_configuration_has_every_bad_value_found_at_its_line() -> None:
    program = "latents/run.yaml"
    found = told(program)
    expected = {
        "PF105": "  eps: 0", "PF204": "grad_clip_norm: 0", "PF209": "lr: 0.01", "PF102": "dtype: fp16",
        "PF214": "train_batch_size: 4", "PF304": "save_steps: 50000", "PF309": "log_every: 5000",
    }  # fmt: skip
    assert {code: (code, program, line_of(program, text)) in found for code, text in expected.items()} == dict.fromkeys(
        expected, True
    )
    assert ("PF208", program, line_of(program, "lr: 0.01")) in found


# -- the policy trainer


def test_the_doctor_finds_the_deviation_of_equal_rewards() -> None:
    program = "policy/train.py"
    assert told(program)[("PF405", program, line_of(program, "rewards.std()"))] is Level.WARNING


def test_equal_rewards_are_refused_with_line_and_cause(tmp_path: Path) -> None:
    ran = run("policy/train.py", tmp_path)
    assert "11 of 12 updates applied, 1 refused (step 5)" in ran.out + ran.err
    (incident,) = ran.incidents
    assert diagnosed(incident) == ("DX201", f"train.py:{line_of('policy/train.py', 'rewards.std()')}")


# -- every set-up through the self-test, and every run through verify


@pytest.mark.parametrize(
    ("factory", "code", "words"),
    [
        ("half_model/make.py:make", 1, "likely cause (PF105): eps=1e-08 is 0 in float16"),
        pytest.param("half_model/make.py:repaired", 0, "fit in fp32", marks=LONG),
        pytest.param("distillation/make.py:make", 1, "became non-finite in step 10, from a loss of nan", marks=LONG),
        pytest.param("distillation/make.py:healthy", 0, "fit in fp32", marks=LONG),
        ("latents/make.py:make", 1, "became non-finite in step 6, from a loss of nan"),
        pytest.param("latents/make.py:healthy", 0, "fit in fp32", marks=LONG),
        pytest.param("policy/make.py:make", 1, "became non-finite in step 6, from a loss of nan", marks=LONG),
        ("policy/make.py:healthy", 0, "fit in fp32"),
    ],
)
def test_the_self_test_tells_the_failing_set_up_from_the_healthy_one(factory: str, code: int, words: str) -> None:
    done = subprocess.run(
        [*STEADY, "selftest", factory], cwd=PROGRAMS, capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert words in " ".join(done.stdout.split())
    assert done.returncode == code


@pytest.mark.parametrize(
    ("program", "rate"),
    [
        pytest.param(
            "distillation/train.py", "93.8 % of 16 steps were applied; 1 was skipped by the program", marks=LONG
        ),
        pytest.param("latents/zero_and_go_on.py", "93.8 % of 16 steps were applied", marks=LONG),
        ("latents/repaired.py", "93.8 % of 16 steps were applied; 1 was skipped by the program"),
        pytest.param("policy/train.py", "91.7 % of 12 steps were applied", marks=LONG),
    ],
)
def test_verify_counts_the_bad_batch_however_the_loop_dealt_with_it(tmp_path: Path, program: str, rate: str) -> None:
    run(program, tmp_path)
    done = subprocess.run(
        [*STEADY, "verify", str(tmp_path / "run"), "--max-memory", "4GB"], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert rate in done.stdout
    assert re.search(r"pass +memory stayed at most 4\.0 GB", done.stdout)
    assert done.returncode == 0
