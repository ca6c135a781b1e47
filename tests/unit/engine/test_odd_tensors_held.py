"""A model, a batch or an output may hold tensors of any kind, some of which torch cannot copy, compare or write. A
healthy run is left alone, and a refused batch leaves no trace and is diagnosed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class Spaced(Tensor):
    """Operations keep the class."""


def freed() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


KINDS: dict[str, Callable[[], Tensor]] = {
    "expanded": lambda: torch.zeros(1, 3).expand(50, 3),
    "overlapping": lambda: torch.ones(4).as_strided((3, 2), (1, 1)),
    "COO": lambda: torch.eye(3).to_sparse(),
    "CSR": lambda: torch.eye(3).to_sparse_csr(),
    "BSR": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "quantised by channel": lambda: torch.quantize_per_channel(
        torch.ones(3, 2), torch.ones(3), torch.zeros(3), 0, torch.quint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "MKLDNN": lambda: torch.ones(3).to_mkldnn(),
    "meta": lambda: torch.empty(3, device="meta"),
    "zeros without memory": lambda: torch._efficientzerotensor(3),
    "freed": freed,
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "conjugated": lambda: torch.ones(3, dtype=torch.cfloat).conj(),
    "negated": lambda: torch.ones(3, dtype=torch.cfloat).conj().imag,
    "unsigned": lambda: torch.ones(3, dtype=torch.uint16),
    "read only": lambda: torch.from_numpy(np.frombuffer(bytes(16), dtype=np.float32)),
    "subclass": lambda: torch.ones(3).as_subclass(Spaced),
    "empty": lambda: torch.ones(0, 3),
}


class Net(nn.Module):
    def __init__(self, make: Callable[[], Tensor], *, moves: bool) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1)
        )  # fmt: skip
        self.register_buffer("odd", make(), persistent=False)
        self.beside = make()
        self._make = make if moves else None

    def forward(self, batch: Tensor) -> Tensor:
        if self._make is not None:
            self.odd = self._make()
        output: Tensor = self.last(self.drop(self.norm(self.first(batch))))
        return output


def train(kind: str, entry: str, *, moves: bool) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = Net(KINDS[kind], moves=moves)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard: Any = None
    if entry == "Guard":
        guard = sg.Guard(model, optimizer, lambda m, batch: m(batch).pow(2).mean())
    elif entry == "attach":
        guard = sg.attach(optimizer, model=model)
    noise = torch.Generator().manual_seed(1)
    for step in range(12):
        batch = torch.randn(6, 4, generator=noise)
        if step == 7 and guard is None:
            continue
        batch[2, 1] = float("nan") if step == 7 else 1.0
        if entry == "Guard":
            guard.step(batch)
            continue
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    if guard is not None:
        guard.close()
    parts = (model.first, model.norm, model.last)
    return [*(value for part in parts for value in part.state_dict().values()), torch.get_rng_state()], guard


@pytest.mark.parametrize("moves", [False, True], ids=["still", "moves"])
@pytest.mark.parametrize("entry", ["Guard", "attach"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_batch_leaves_no_trace_in_a_model_that_holds_an_odd_tensor(kind: str, entry: str, moves: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = train(kind, "plain", moves=moves)
        found, guard = train(kind, entry, moves=moves)
    assert all(map(torch.equal, found, plain))
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    if entry == "Guard":
        diagnosis = guard.incidents[0].diagnosis
        assert diagnosis.cause is not None
        assert diagnosis.cause.code == "DX401"
        assert list(diagnosis.rows) == [2]


class Passing(nn.Module):
    """Its batch and its output hold such a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"loss": self.body(batch["x"]).pow(2).mean(), "odd": batch["odd"]}


def train_passing(kind: str, entry: str) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = Passing()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard: Any = None
    if entry == "Guard":
        guard = sg.Guard(model, optimizer, lambda m, batch: m(batch)["loss"])
    elif entry == "attach":
        guard = sg.attach(optimizer, model=model)
    noise = torch.Generator().manual_seed(1)
    for step in range(9):
        batch = {"x": torch.randn(6, 4, generator=noise), "odd": KINDS[kind](), "several": [KINDS[kind]()]}
        if step == 6 and guard is None:
            continue
        batch["x"][2, 1] = float("nan") if step == 6 else 1.0
        if entry == "Guard":
            guard.step(batch)
            continue
        optimizer.zero_grad()
        model(batch)["loss"].backward()
        optimizer.step()
    if guard is not None:
        guard.close()
    return list(model.state_dict().values()), guard


@pytest.mark.parametrize("entry", ["Guard", "attach"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_batch_that_holds_an_odd_tensor_leaves_no_trace(kind: str, entry: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = train_passing(kind, "plain")
        found, guard = train_passing(kind, entry)
    assert all(map(torch.equal, found, plain))
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    if entry == "Guard":
        assert guard.incidents[0].diagnosis.cause is not None
