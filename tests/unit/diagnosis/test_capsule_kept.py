"""The guard keeps a capsule of the first incident of each kind, and training goes on as if it had not."""

from __future__ import annotations

import errno
import importlib
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.capsule import capsule as capsule_module
from steadygrad.diagnosis.capsule.capsule import read_capsule
from steadygrad.journal import read_events, read_incidents

GUARD_TESTS = str(Path(__file__).resolve().parents[1] / "engine")
if GUARD_TESTS not in sys.path:
    sys.path.insert(0, GUARD_TESTS)
specimens: Any = importlib.import_module("specimens")


def same_bits(a: Tensor, b: Tensor) -> bool:
    assert a.dtype == b.dtype
    return a.shape == b.shape and torch.equal(
        a.detach().contiguous().reshape(-1).view(torch.uint8), b.detach().contiguous().reshape(-1).view(torch.uint8)
    )


def poisoned(count: int, at: int) -> list[Tensor]:
    """Batches of the specimens, with one more that holds a NaN, before the batch of that number."""
    data = specimens.batches(count)
    bad = data[0].clone()
    bad[2, 3] = math.nan
    return [*data[:at], bad, *data[at:]]


@pytest.mark.parametrize("mode", ["now", "late"])
@pytest.mark.parametrize("wish", ["keep", "redact"])
def test_training_after_a_capsule_is_bit_identical_to_a_run_that_never_saw_the_batch(
    mode: str, wish: str, tmp_path: Path
) -> None:
    it = specimens.run_guarded(poisoned(12, at=6), settle=mode, run_dir=tmp_path / "run", capsule=wish)
    assert (tmp_path / "run" / it.guard.incidents[0].capsule).is_file()
    assert (
        specimens.differing(specimens.state_of(specimens.run_plain(specimens.batches(12))), specimens.state_of(it))
        == []
    )


@pytest.mark.parametrize("mode", ["now", "late"])
def test_the_state_in_a_capsule_is_that_from_before_the_failing_step(mode: str, tmp_path: Path) -> None:
    data = poisoned(12, at=6)
    specimens.run_guarded(data, settle=mode, run_dir=tmp_path / "run")
    found = read_capsule(tmp_path / "run" / "incidents" / "0001")
    plain = specimens.run_plain(data[:6])
    assert found.step == 6
    parameters = dict(plain.model.named_parameters())
    assert set(found.state["parameters"]) == set(parameters)
    assert all(same_bits(found.state["parameters"][name], value) for name, value in parameters.items())
    buffers = dict(plain.model.named_buffers())
    assert all(same_bits(found.state["buffers"][name], value) for name, value in buffers.items())
    (moments,) = found.state["optimizers"]
    for position, values in enumerate(plain.optimizer.state.values()):
        assert all(same_bits(moments["state"][str(position)][key], value) for key, value in values.items())
    assert torch.equal(found.state["rng"]["cpu"], torch.get_rng_state())
    assert found.batches is not None
    assert same_bits(found.batches[0], data[6])


def test_only_the_first_incident_of_each_kind_has_one_and_the_journal_shows_where(tmp_path: Path) -> None:
    data = specimens.batches(12)
    for index in (3, 8):
        data[index][0, 0] = math.nan
    guard = specimens.run_guarded(data, run_dir=tmp_path).guard
    assert [incident.capsule for incident in guard.incidents] == ["incidents/0001/capsule.safetensors", None]
    assert [incident.capsule for incident in read_incidents(tmp_path)] == [i.capsule for i in guard.incidents]
    assert (tmp_path / "incidents" / "0001" / "capsule.json").is_file()
    assert not (tmp_path / "incidents" / "0002" / "capsule.json").exists()


ODD = torch.tensor([0x7FC00001, -0x3FFFFF], dtype=torch.int32).view(torch.float32)
"""NaNs with a payload and a sign, which a conversion on the way would lose."""


class Kinds(nn.Module):
    """Weights and buffers of every kind, and a tied pair."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.narrow = nn.Parameter(torch.randn(3).to(torch.float16))
        self.short = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(2, dtype=torch.float64), requires_grad=False)
        self.register_buffer("count", torch.tensor([2**53 + 1, -1]))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("limits", torch.tensor([1e-45, -0.0]))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids)).float() + self.narrow.float().sum() + self.short.float().sum()


def test_every_kind_of_tensor_comes_back_to_the_bit(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Kinds()
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    batch = {
        "ids": torch.arange(5),
        "scale": torch.tensor(math.inf, dtype=torch.bfloat16),
        "names": ["a", "b"],
        "odd": ODD,
    }

    def loss_fn(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return (model(batch["ids"]) * batch["scale"].float()).mean()

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with sg.Guard(model, optimizer, loss_fn, run_dir=tmp_path, diagnose="off", precision="bf16") as guard:
        guard.step(batch)
    assert not guard.summary()["guard_faults"]
    found = read_capsule(tmp_path / "incidents" / "0001")
    kept = {**found.state["parameters"], **found.state["frozen"], **found.state["buffers"]}
    assert "head.weight" not in kept  # tied: kept once, under its first name
    assert set(kept) == set(before) - {"head.weight"}
    assert all(same_bits(kept[name], before[name]) for name in kept)
    assert found.batches is not None
    assert same_bits(found.batches[0]["ids"], batch["ids"])
    assert same_bits(found.batches[0]["scale"], batch["scale"])
    assert same_bits(found.batches[0]["odd"], ODD)
    assert found.batches[0]["names"] == ["a", "b"]
    assert found.facts["precision"] == "bf16"


def test_a_redacted_capsule_keeps_shapes_and_no_value_of_the_batch(tmp_path: Path) -> None:
    secret = 0.123456789
    data = poisoned(8, at=4)
    data[4][0, 0] = secret
    specimens.run_guarded(data, run_dir=tmp_path, capsule="redact")
    folder = tmp_path / "incidents" / "0001"
    assert read_capsule(folder).batches is None
    (shapes,) = json.loads((folder / "capsule.json").read_text())["shapes"]
    assert shapes == {"": {"shape": list(data[4].shape), "dtype": "torch.float32"}}
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert struct.pack("<f", secret) not in kept
    assert b"0.1234" not in kept


def test_the_same_value_is_found_where_batches_are_kept(tmp_path: Path) -> None:
    data = poisoned(8, at=4)
    data[4][0, 0] = 0.123456789
    specimens.run_guarded(data, run_dir=tmp_path)
    kept = (tmp_path / "incidents" / "0001" / "capsule.safetensors").read_bytes()
    assert struct.pack("<f", 0.123456789) in kept


def test_with_off_there_is_none(tmp_path: Path) -> None:
    guard = specimens.run_guarded(poisoned(8, at=4), run_dir=tmp_path, capsule="off").guard
    assert guard.incidents[0].capsule is None
    assert list(tmp_path.rglob("capsule*")) == []


def test_an_unknown_wish_is_refused() -> None:
    it = specimens.setup()
    with pytest.raises(sg.UsageError, match="'keep', 'redact', 'off'"):
        sg.Guard(it.model, it.optimizer, it.loss_fn, capsule="blur")


def test_past_the_limit_weights_are_left_out_and_it_says_so(tmp_path: Path) -> None:
    specimens.run_guarded(poisoned(8, at=4), run_dir=tmp_path, capsule_bytes=10_000)
    found = read_capsule(tmp_path / "incidents" / "0001")
    assert found.facts["left_out"] == ["parameters", "optimizers"]
    assert "parameters" not in found.state
    assert found.batches is not None


def test_where_not_even_the_rest_fits_there_is_an_event_and_no_capsule(tmp_path: Path) -> None:
    guard = specimens.run_guarded(poisoned(8, at=4), run_dir=tmp_path, capsule_bytes=100).guard
    assert guard.incidents[0].capsule is None
    assert guard.summary()["applied"] == 8
    (event,) = [event for event in read_events(tmp_path) if event.kind == "capsule_not_kept"]
    assert "the limit is 100" in event.data["why"]
    assert list(tmp_path.rglob("capsule*")) == []


def test_a_full_disk_stops_neither_training_nor_leaves_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(capsule_module, "save_file", full)
    it = specimens.run_guarded(poisoned(12, at=6), run_dir=tmp_path)
    assert (
        specimens.differing(specimens.state_of(specimens.run_plain(specimens.batches(12))), specimens.state_of(it))
        == []
    )
    (event,) = [event for event in read_events(tmp_path) if event.kind == "capsule_not_kept"]
    assert "No space left" in event.data["why"]
    assert list(tmp_path.rglob("capsule*")) == []


def test_a_batch_that_cannot_be_kept_without_code_costs_the_capsule_and_nothing_else(tmp_path: Path) -> None:
    class Example:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    model = nn.Linear(3, 1)

    def loss_fn(model: nn.Module, batch: Example) -> Tensor:
        return model(batch.x).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sg.Guard(model, optimizer, loss_fn, run_dir=tmp_path, diagnose="off") as guard:
        for value in (1.0, math.nan, 1.0):
            guard.step(Example(torch.full((2, 3), value)))
    assert guard.summary()["applied"] == 2
    (event,) = [event for event in read_events(tmp_path) if event.kind == "capsule_not_kept"]
    assert "Example" in event.data["why"]


@pytest.mark.parametrize(
    "odd", [torch.eye(3).to_sparse(), np.array([{"a": 1}, {"a": 2}], dtype=object)], ids=["sparse", "array of objects"]
)
def test_a_batch_with_something_no_open_format_holds_is_no_fault_of_the_guard(odd: Any, tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["x"]).mean()

    with sg.Guard(model, optimizer, loss_fn, run_dir=tmp_path, diagnose="off") as guard:
        for value in (1.0, math.nan, 1.0):
            guard.step({"x": torch.full((2, 3), value), "odd": odd})
    assert guard.summary()["applied"] == 2
    assert not guard.summary()["guard_faults"]
    assert len([event for event in read_events(tmp_path) if event.kind == "capsule_not_kept"]) == 1
    assert list(tmp_path.rglob("capsule*")) == []
