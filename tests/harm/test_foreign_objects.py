"""A program may hold objects that raise when they are looked at: they are passed by, and all else is guarded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harm_runs import under_steady_run
from torch import Tensor, nn

import steadygrad as sg

ODD_OBJECTS = """
    import sys, weakref
    from unittest import mock
    import torch
    from torch import nn

    class Gone:
        pass

    class Unbound:  # as a proxy of a request outside of one
        def _no(self, *_):
            raise RuntimeError("outside of its context")
        __class__ = property(_no)
        __eq__ = __bool__ = __len__ = __iter__ = __hash__ = __repr__ = __str__ = __contains__ = __getitem__ = _no
        def __getattr__(self, name):
            raise RuntimeError("outside of its context: " + name)

    class Strict(dict):  # only those who know how get at it
        def _no(self, *_):
            raise RuntimeError("locked")
        __getitem__ = __iter__ = __contains__ = items = keys = values = get = copy = _no

    class Endless:
        def __len__(self):
            raise ValueError("no length")
        def __iter__(self):
            while True:
                yield 0
        def __eq__(self, other):
            raise TypeError("not to be compared")
        __hash__ = None

    class Locked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise RuntimeError("locked")

    def odd_objects():
        gone = Gone()
        return [weakref.proxy(gone), Unbound(), Strict(a=1), Endless(), mock.MagicMock(), mock.Mock(spec=torch.Tensor),
                mock.Mock(spec=nn.Linear), torch.ones(2).as_subclass(Locked), object.__new__(nn.Linear),
                object.__new__(torch.optim.Adam), object.__new__(torch.utils.data.DataLoader)]
"""
TRAINING = """
    import steadygrad as sg

    def loss_fn(model, batch):
        mine = odd_objects() if where == "locals" else []
        return (model(batch["x"]) - batch["y"]).pow(2).mean()

    def train(kind, bad=5):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if where == "model":
            vars(model)["held"], vars(model)["list"] = odd_objects()[1], odd_objects()
            vars(model).update((f"odd{place}", odd) for place, odd in enumerate(odd_objects()) if place < 6)
        mine = odd_objects() if where == "locals" else []
        guard = None
        if kind == "guard":
            guard = sg.Guard(model, optimizer, loss_fn)
        elif kind == "attach":
            guard = sg.attach(optimizer, model=model)
        for step in range(12):
            points = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            batch = {"x": points, "y": points.sum(1, keepdim=True)}
            if step == bad:
                if kind == "left out":
                    continue
                batch["y"][2] = float("nan")
            if where == "batch":
                batch.update((f"odd{place}", odd) for place, odd in enumerate(odd_objects()))
                batch["list"] = odd_objects()
            if kind == "guard":
                guard.step(batch)
                continue
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
            assert guard.summary()["skipped"] == 1, guard.summary()
        return [each.clone() for each in model.state_dict().values()]

    for where in ("globals", "locals", "batch", "model"):
        held = odd_objects() if where == "globals" else []
        table = dict(enumerate(held))
        reference, found = train("left out"), train(ENTRY)
        assert all(map(torch.equal, reference, found)), where
"""


@pytest.mark.parametrize("entry", ["guard", "attach", "run"])
def test_objects_that_raise_when_looked_at_are_passed_by(entry: str, tmp_path: Path) -> None:
    ended = under_steady_run(f'{ODD_OBJECTS}\n    ENTRY = "{entry}"\n{TRAINING}', tmp_path)
    ended.check_unhurt()
    assert "internal error" not in ended.stderr
    assert entry != "run" or "4 refused" in ended.stderr


LAZY_AND_REST = """
    import torch
    from torch import nn
    import steadygrad as sg

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.later, self.norm = nn.Linear(4, 1), nn.LazyLinear(3), nn.LazyBatchNorm1d()
        def forward(self, x):
            return self.body(x)

    def train(entry):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.body.parameters(), lr=1e-2)
        guard = sg.Guard(model, optimizer, lambda m, x: m(x).pow(2).mean()) if entry == "guard" else None
        for step in range(10):
            batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            if step == 5 and entry == "left out":
                continue
            batch[1, 1] *= float("nan") if step == 5 else 1.0
            if guard is not None:
                guard.step(batch)
                continue
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
        assert torch.nn.parameter.is_lazy(model.later.weight)
        return list(model.body.parameters())

    assert all(map(torch.equal, train("left out"), train(ENTRY)))
"""


@pytest.mark.parametrize("entry", ["guard", "run"])
def test_lazy_parts_that_are_never_called_do_not_hinder_a_diagnosis(entry: str, tmp_path: Path) -> None:
    ended = under_steady_run(f'    ENTRY = "{entry}"\n{LAZY_AND_REST}', tmp_path)
    ended.check_unhurt()
    assert "internal error" not in ended.stderr
    assert entry != "run" or ("1 refused" in ended.stderr and "weights are finite" in ended.stderr)
    assert any(incident.diagnosis and incident.diagnosis.cause for incident in ended.incidents) or entry == "guard"


def test_a_loss_that_is_a_number_when_it_is_computed_again_ends_no_training() -> None:
    """A batch that is an iterator is used up: run again, the loss function returns 0.0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss_fn(model: nn.Module, parts: Iterator[Tensor]) -> Any:
        total: Any = 0.0
        for part in parts:
            total = total + model(part).pow(2).mean()
        return total / 2

    guard = sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2), loss_fn)
    for step in range(8):
        parts = [torch.randn(3, 4), torch.randn(3, 4)]
        parts[1][0, 0] *= float("nan") if step == 5 else 1.0
        guard.step(part for part in parts)
    guard.close()
    assert (guard.summary()["applied"], guard.summary()["skipped"]) == (7, 1)


class Shy(nn.Module):
    """An object that is half made: a walk over what a loss function reaches comes by it first."""

    def __init__(self) -> None:
        pass


def test_one_object_that_raises_does_not_hide_the_others_that_a_rerun_must_restore() -> None:
    torch.manual_seed(0)
    shy, seen = Shy(), list[int]()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(len(batch) if shy is not None else 0)
        return model(batch).pow(2).mean()

    model = nn.Linear(4, 1)
    guard = sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2), loss_fn)
    for step in range(8):
        batch = torch.randn(3, 4)
        batch[0, 0] *= float("nan") if step == 5 else 1.0
        guard.step(batch)
    guard.close()
    assert guard.summary()["skipped"] == 1
    assert seen == [3] * 8


NESTED = """
    import torch
    from torch import nn

    def loss_fn(model, batch):
        return model(batch).pow(2).mean() + 0.01 * sum(row.sum() for row in batch["rows"].unbind())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 1)
        def forward(self, batch):
            return torch.stack([self.body(row).mean() for row in batch["rows"].unbind()])

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(10):
        rows = [torch.randn(3, 4), torch.randn(2, 4)]
        rows[1][0, 0] *= float("nan") if step == 5 else 1.0
        batch = {"rows": torch.nested.nested_tensor(rows)}
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_batch_with_a_nested_tensor_is_diagnosed_without_an_internal_error(tmp_path: Path) -> None:
    ended = under_steady_run(NESTED, tmp_path)
    assert ended.code == 0
    assert "internal error" not in ended.stderr
    assert "1 refused" in ended.stderr
