"""The zoo's cases are measured against, so they are measured first: each TRUTH is checked by running the program."""

import importlib
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # the zoo is not installed with the package; a bare `pytest` does not add the root
    sys.path.insert(0, str(ROOT))
verify = importlib.import_module("zoo.verify")
CASES = sorted((verify.ZOO / "cases").glob("2*.py"))

LYING_CASE = '''
"""A healthy program that claims a NaN."""
import torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="{name}", source="test", symptom="nan_loss", phase="loss", cause="log_zero", op="log", module="nowhere",
             line_marker="# <-- origin", first_bad_step=2, bad_rows=None, fixes_that_work=[],
             fixes_that_do_not=["clip"])


def make(seed=0, fix=None):
    m = B.mlp(8, 8, 1)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(4), B.adam(m))
'''


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_are_cases_to_check():
    assert len(CASES) >= 50


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_program_does_what_its_truth_says(path: pathlib.Path):
    assert verify.check(path, quick=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_repairs_and_guilty_rows_are_as_its_truth_says(path: pathlib.Path):
    assert verify.check(path) == []


def test_a_case_that_lies_is_caught(tmp_path: pathlib.Path):
    path = tmp_path / "cases" / "299_liar.py"
    path.parent.mkdir()
    path.write_text(LYING_CASE.format(name=path.stem))
    said = " / ".join(verify.check(path))
    assert "nan_loss at step None, not 2" in said
    assert "no module 'nowhere'" in said
    assert "marker ends 0 lines" in said
    assert "clip is said not to work and does" in said
