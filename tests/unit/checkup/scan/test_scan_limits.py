"""Checkpoints made to cost, to run code or to hide values: each is refused in a sentence, within 2 s and 200 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hostile_checkpoints import DECEIVING, EXPENSIVE, archive, entry, safetensors, tensor
from safetensors.torch import save_file

from steadygrad.checkup.scan.natural_order import natural
from steadygrad.checkup.scan.scan import scan
from steadygrad.records.checks.scan import ScanVerdict

LIMIT_S, LIMIT_MB = 2.0, 200
# These are large and harmless: nothing is in them that could not be read.
HARMLESS = {"entries.gguf", "members.pt"}
SCAN = """
import json, sys, time
from pathlib import Path
from steadygrad.checkup.scan.scan import scan
report = scan([Path(sys.argv[1])], threads=1)
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
problems = [problem for file in report.files for problem in file.problems]
print(json.dumps([report.exit_code, problems, time.process_time(), int(peak.split()[1]) / 1024]))
"""


@pytest.mark.parametrize("name", EXPENSIVE)
def test_a_checkpoint_made_to_cost_is_refused_within_two_seconds_and_200_mb(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(EXPENSIVE[name]())
    done = subprocess.run([sys.executable, "-c", SCAN, str(path)], capture_output=True, text=True, check=True)
    path.unlink()
    code, problems, seconds, megabytes = json.loads(done.stdout)
    assert code == (0 if name in HARMLESS else 2)
    assert len(problems) == (name not in HARMLESS)
    assert all(name in problem and "\n" not in problem for problem in problems)
    assert seconds < LIMIT_S
    assert megabytes < LIMIT_MB


@pytest.mark.parametrize("name", DECEIVING)
def test_a_checkpoint_that_asks_for_code_or_hides_values_is_never_called_clean(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    make, words = DECEIVING[name]
    path.write_bytes(make())
    report = scan([path])
    assert report.verdict is ScanVerdict.UNREADABLE
    (problem,) = report.files[0].problems
    assert name in problem
    assert words in problem
    assert problem.endswith(".")
    assert len(problem) < 600


def test_the_twins_that_tell_the_truth_are_clean(tmp_path: Path) -> None:
    """The same bytes without the lie, so that what is refused above is refused for the lie."""
    (tmp_path / "a.pt").write_bytes(archive(tensor(claimed=4, size=4), {"data/0": b"\0\0\x80\x3f" * 4}))
    whole = {"a": entry(0, 4), "b": entry(4, 8)}
    (tmp_path / "b.safetensors").write_bytes(safetensors(whole, b"\0\0\x80\x3f" * 2))
    report = scan([tmp_path])
    assert [file.verdict for file in report.files] == [ScanVerdict.CLEAN] * 2
    assert [file.num_tensors for file in report.files] == [1, 2]


def test_what_people_save_is_still_read(tmp_path: Path) -> None:
    """A model with functions, a path, generator states: names that are lower case, or reached by getattr."""
    import enum
    import pathlib
    import random

    import numpy as np

    model = torch.nn.TransformerEncoderLayer(8, 2, activation=torch.nn.functional.gelu)
    saved = {
        "model": model, "optimizer": torch.optim.AdamW(model.parameters()).state_dict(), "path": pathlib.Path("a/b"),
        "flag": enum.Flag, "numpy": np.random.get_state(), "generator": np.random.default_rng(0), "half": np.float16(1),
        "python": random.getstate(), "device": torch.device("cpu"), "dtype": torch.bfloat16, "size": torch.Size([2]),
        "sparse": torch.eye(3).to_sparse(), "parameter": torch.nn.Parameter(torch.ones(2)), "method": model.forward,
    }  # fmt: skip
    for zipped in (True, False):
        torch.save(saved, tmp_path / f"zipped-{zipped}.pt", _use_new_zipfile_serialization=zipped)
    report = scan([tmp_path])
    assert [file.problems for file in report.files] == [(), ()]
    assert report.verdict is ScanVerdict.CLEAN
    assert report.files[0].num_tensors > 12
    assert "it holds NumPy arrays, which were not checked" in report.files[0].notes


def test_numbers_in_names_are_ordered_by_their_value(tmp_path: Path) -> None:
    names = ["step-500.safetensors", "step-2000.safetensors", "step-10000.safetensors"]
    for name in reversed(names):
        save_file({"w": torch.ones(2)}, tmp_path / name)
    assert [Path(file.path).name for file in scan([tmp_path]).files] == names
    assert [Path(file.path).name for file in scan([tmp_path / name for name in sorted(names)]).files] == names
    assert sorted(["b10", "b9", "a", "b", "10", "9"], key=natural) == ["a", "b", "b9", "b10", "9", "10"]
