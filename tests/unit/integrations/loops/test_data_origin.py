"""A batch is made once more by its data set: which line made it non-finite, and what is left of that."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from steadygrad.engine.recovery.reruns import user_state
from steadygrad.engine.recovery.reruns.side_effects import HasEffect
from steadygrad.integrations.loops.data_origin import LoaderSource, MadeBad, origin_in_loader
from steadygrad.integrations.zero_code.rerun.examine_refusal import _without_effect


@pytest.fixture(autouse=True)
def everything_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function can reach depends on what other tests of the process have loaded."""
    monkeypatch.setattr(user_state, "_MAX_OBJECTS", 10_000_000)


class Points(Dataset[Tensor]):
    """Points that are divided by their largest number; the fourth is zero."""

    writes: Path | None = None
    mends = False

    def __init__(self) -> None:
        self.points = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
        self.points[3] = 0.0
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        self.asked += 1
        if self.writes is not None:
            self.writes.write_text("asked")
        scaled = self.points[index] / np.abs(self.points[index]).max()
        if self.mends:
            scaled = np.nan_to_num(scaled)
        return torch.from_numpy(scaled + np.random.rand(3).astype(np.float32))


def made_bad(data: Dataset[Tensor], collate: Any = torch.stack) -> MadeBad | None:
    iterator = iter(DataLoader(data, 4, collate_fn=collate))
    return origin_in_loader(LoaderSource(weakref.ref(iterator), (2, 3, 4)), _without_effect)


def test_the_line_of_numpy_that_divides_zero_by_zero_is_named_and_nothing_is_left_of_it() -> None:
    data = Points()
    np.random.seed(0)
    made = made_bad(data)
    assert made is not None
    assert (made.op, made.code_line) == (None, "scaled = self.points[index] / np.abs(self.points[index]).max()")
    drawn = np.random.rand()
    np.random.seed(0)
    assert (drawn, data.asked) == (np.random.rand(), 0)


def test_values_that_are_stored_bad_or_mended_have_no_such_line() -> None:
    stored = Points()
    stored.points[3] = math.nan
    mended = Points()
    mended.mends = True
    assert made_bad(stored) is None
    assert made_bad(mended) is None


def test_lines_that_differ_are_not_guessed_between() -> None:
    """The first is mended; the second is not, but a value that is mended in another way would look the same."""
    data = Points()
    data.mends = True
    assert made_bad(data, lambda points: torch.stack(points) / torch.zeros(1)) is None


def test_a_data_set_that_writes_a_file_is_not_run_again(tmp_path: Path) -> None:
    data = Points()
    data.writes = tmp_path / "log"
    with pytest.raises(HasEffect, match="for writing"):
        made_bad(data)
    assert not data.writes.exists()


def test_of_a_loader_that_is_gone_nothing_is_said() -> None:
    iterator: Any = iter(DataLoader(Points(), 4))
    source = LoaderSource(weakref.ref(iterator), (3,))
    del iterator
    assert origin_in_loader(source, _without_effect) is None


def test_a_data_set_that_is_only_asked_in_workers_is_not_asked_in_this_process() -> None:
    data = Points()
    iterator = iter(DataLoader(data, 4, collate_fn=torch.stack))
    iterator._num_workers = 2
    assert origin_in_loader(LoaderSource(weakref.ref(iterator), (2, 3, 4)), _without_effect) is None
    assert data.asked == 0
