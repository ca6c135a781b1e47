"""`--since`: the last good checkpoint of a series, found with few looks, and honest when there is none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from steadygrad.checkup.scan.bisect_checkpoints import bisect, checkpoints
from steadygrad.records.checks.scan import ScanVerdict
from steadygrad.records.errors import UsageError


def series(folder: Path, verdicts: str) -> Path:
    """One checkpoint a letter: g good, b bad, x damaged."""
    for number, pending_numbers in enumerate(verdicts, start=1):
        home = folder / f"checkpoint-{number * 500}"
        home.mkdir()
        save_file({"w": torch.full((3,), math.nan if pending_numbers == "b" else 1.0)}, home / "model.safetensors")
        if pending_numbers == "x":
            (home / "model.safetensors").write_bytes(b"torn")
    return folder


def name(path: str | None) -> str | None:
    return None if path is None else Path(path).name


@pytest.mark.parametrize("first_bad", range(1, 13))
def test_the_edge_is_found_wherever_it_is_with_few_looks(tmp_path: Path, first_bad: int) -> None:
    found = bisect(series(tmp_path, "g" * first_bad + "b" * (12 - first_bad)))
    last = 12 if first_bad == 12 else first_bad
    assert name(found.last_good) == f"checkpoint-{last * 500}"
    assert name(found.first_bad) == (None if first_bad == 12 else f"checkpoint-{(first_bad + 1) * 500}")
    assert len(found.looked_at) <= 6
    assert found.num_checkpoints == 12


def test_both_sides_of_the_edge_were_really_looked_at(tmp_path: Path) -> None:
    found = bisect(series(tmp_path, "ggggbbbb"))
    verdicts = {name(path): verdict for path, verdict in found.looked_at}
    assert verdicts[name(found.last_good)] is ScanVerdict.CLEAN
    assert verdicts[name(found.first_bad)] is ScanVerdict.POISONED


@pytest.mark.parametrize("verdicts", ["b", "bbb", "x", "xb"])
def test_no_good_one_is_said_to_be_none(tmp_path: Path, verdicts: str) -> None:
    found = bisect(series(tmp_path, verdicts))
    assert found.last_good is None
    assert name(found.first_bad) == "checkpoint-500"


def test_a_damaged_oldest_does_not_hide_the_good_ones_after_it(tmp_path: Path) -> None:
    found = bisect(series(tmp_path, "xggb"))
    assert (name(found.last_good), name(found.first_bad)) == ("checkpoint-1500", "checkpoint-2000")


def test_checkpoints_are_ordered_by_number_and_not_by_letter(tmp_path: Path) -> None:
    for number in (1000, 200, 30):
        (tmp_path / f"step_{number}.pt").write_bytes(b"x")
    (tmp_path / "final.pt").write_bytes(b"x")
    (tmp_path / "notes-7.txt").write_bytes(b"x")
    assert [path.name for path in checkpoints(tmp_path)] == ["step_30.pt", "step_200.pt", "step_1000.pt"]


def test_a_folder_without_a_series_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no series of checkpoints"):
        bisect(tmp_path)
