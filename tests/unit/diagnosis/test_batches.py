"""Batches of any make: opened to their tensors, narrowed to rows, and never changed themselves."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import register_pytree_node

from steadygrad.diagnosis.locate.bad_rows import grafted
from steadygrad.diagnosis.replay.batch_tree import map_batch, narrow, walk_batch
from steadygrad.diagnosis.replay.guard_step import select_rows

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "some"


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


class Loose:
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.inner = {"x": [x], "y": y}


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(12.0).reshape(4, 3), torch.arange(4.0).reshape(4, 1)


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda x, y: {"x": x, "y": y}, ["x", "y"]),
        (Sample, ["x", "y", "name"]),
        (Pair, ["0", "1"]),
        (Slotted, ["x", "y"]),
        (Loose, ["inner.x.0", "inner.y"]),
    ],
)
def test_every_make_is_opened_narrowed_and_left_as_it_was(make: Any, keys: list[str]) -> None:
    x, y = numbers()
    batch = make(x, y)
    assert [key for key, _ in walk_batch(batch)] == keys
    some = narrow(batch, [2, 0], 4)
    assert type(some) is type(batch)
    tensors = [value for _, value in walk_batch(some) if isinstance(value, torch.Tensor)]
    assert torch.equal(tensors[0], x[[2, 0]])
    assert torch.equal(tensors[1], y[[2, 0]])
    assert [v.shape[0] for _, v in walk_batch(batch) if isinstance(v, torch.Tensor)] == [4, 4]
    wide = map_batch(batch, lambda item: item.double() if isinstance(item, torch.Tensor) else item)
    assert {v.dtype for _, v in walk_batch(wide) if isinstance(v, torch.Tensor)} == {torch.float64}


def test_what_carries_no_tensor_is_a_leaf() -> None:
    config = Loose(*numbers())
    config.inner = {}
    batch = {"model": nn.Linear(1, 1), "call": len, "config": config, "word": "x"}
    assert [key for key, _ in walk_batch(batch)] == list(batch)


def test_a_row_is_put_among_those_of_another_batch() -> None:
    x, y = numbers()
    mixed = grafted({"x": x, "n": 3}, {"x": x + 100.0, "n": 3}, 1)
    assert torch.equal(mixed["x"], torch.cat([x[:3], x[1:2] + 100.0]))
    assert grafted({"x": x}, {"z": x}, 1) is None
    assert grafted({"x": x}, {"x": x[:2]}, 1) is None
    assert grafted(y, x, 1) is None


@pytest.mark.parametrize("make", [Sample, Slotted])
def test_a_nan_in_an_object_is_told_as_data_with_its_row(run_case: Any, make_case: Any, make: Any) -> None:
    random = torch.Generator().manual_seed(0)
    batches = [make(torch.randn(5, 3, generator=random), torch.randn(5, 1, generator=random)) for _ in range(5)]
    batches[3].x[2, 1] = math.nan
    model = nn.Linear(3, 1)
    case = make_case(
        model,
        lambda model, batch: F.mse_loss(model(batch.x), batch.y),
        batches,
        torch.optim.SGD(model.parameters(), lr=0.1),
        select_rows=select_rows,
    )
    found = run_case(case).diagnosis
    assert (found.phase, found.cause.slug, found.rows, found.origin.tensor) == ("data", "bad_input", (2,), "x")
    assert "drop_rows" in [trial.remedy.slug for trial in found.remedies]


def test_rows_that_fail_alone_and_are_finite_among_others_are_not_named(run_case: Any, make_case: Any) -> None:
    """A standard deviation needs two rows, so any row fails alone; the trouble is that they are all equal."""
    random = torch.Generator().manual_seed(0)
    batches = [(torch.randn(6, 3, generator=random), torch.randn(6, generator=random)) for _ in range(6)]
    batches[3][1].fill_(2.0)

    def whitened(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, reward = batch
        return ((reward - reward.mean()) / reward.std() * model(x)[:, 0]).mean()

    model = nn.Linear(3, 1)
    found = run_case(make_case(model, whitened, batches, torch.optim.SGD(model.parameters(), lr=0.1))).diagnosis
    assert found.cause.slug == "zero_division"
    assert found.rows is None
    assert found.rows_coupled


def test_a_mapping_that_torch_was_told_how_to_rebuild_keeps_its_kind() -> None:
    class Bound(Mapping[str, Any]):
        def __init__(self, names: dict[str, Any], owner: object) -> None:
            self.names, self.owner = names, owner

        def __getitem__(self, key: str) -> Any:
            return self.names[key]

        def __iter__(self) -> Iterator[str]:
            return iter(self.names)

        def __len__(self) -> int:
            return len(self.names)

    register_pytree_node(
        Bound,
        lambda bound: (list(bound.names.values()), (list(bound.names), bound.owner)),
        lambda values, about: Bound(dict(zip(about[0], values, strict=True)), about[1]),
    )
    owner = object()
    batch = Bound({"x": torch.ones(2), "inner": {"y": torch.zeros(2)}}, owner)
    wide = map_batch(batch, lambda leaf: leaf.double())
    assert type(wide) is Bound
    assert wide.owner is owner
    assert (wide["x"].dtype, wide["inner"]["y"].dtype) == (torch.float64, torch.float64)
    assert batch["x"].dtype is torch.float32
