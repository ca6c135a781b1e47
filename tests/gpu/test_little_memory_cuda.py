"""A model that barely fits on a CUDA device: the origin is named with what is left, and no allocation fails on the way
where that can be known before."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.diagnosis.service import DiagnosisService
from steadygrad.records import Diagnosis

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BAD, STEPS = 5, 8
WIDE = {"rows": 512, "width": 4096, "depth": 8}
"""Weights, gradients and moments take most of the memory."""
DEEP = {"rows": 65536, "width": 512, "depth": 24}
"""What the forward keeps for backward takes most of it."""


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()


class Rooted(nn.Module):
    """Finite for a row of zeros, and its gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.pow(2).sum(-1, keepdim=True).sqrt()


class Net(nn.Module):
    def __init__(self, middle: nn.Module, width: int, depth: int) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.middle, self.head = middle, nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.tanh(layer(x))
        out: Tensor = self.head(self.middle(x))
        return out


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def fresh() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def num_failed() -> int:
    return int(torch.cuda.memory_stats().get("num_ooms", 0))


@pytest.fixture(autouse=True)
def _limits_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.cuda.set_per_process_memory_fraction(1.0)
    fresh()


def trained(middle: Callable[[], nn.Module], sizes: dict[str, int], diagnose: str) -> tuple[list[Tensor], Any, int]:
    """The weights, the diagnosis, and the bytes that are held at the end."""
    fresh()
    torch.manual_seed(0)
    model = Net(middle(), sizes["width"], sizes["depth"]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with sg.Guard(model, optimizer, loss_fn, diagnose=diagnose) as guard:
        for step in range(STEPS):
            torch.manual_seed(step)
            batch = torch.randn(sizes["rows"], sizes["width"], device="cuda")
            if step == BAD:
                batch[sizes["rows"] // 2] = 0.0
            guard.step(batch)
            del batch
    assert guard.summary()["skipped"] == 1
    gc.collect()
    return [p.detach().cpu() for p in model.parameters()], guard.incidents[0].diagnosis, torch.cuda.memory_allocated()


def where(diagnosis: Diagnosis) -> tuple[Any, ...]:
    origin, cause = diagnosis.origin, diagnosis.cause
    assert origin is not None, diagnosis.because
    return origin.phase, origin.op, origin.module, cause.slug if cause else None


def expected_of(middle: Callable[[], nn.Module]) -> tuple[Any, ...]:
    return where(trained(middle, {"rows": 64, "width": 64, "depth": 4}, "auto")[1])


@pytest.mark.parametrize("sizes", [WIDE, DEEP], ids=["weights", "activations"])
@pytest.mark.parametrize("middle", [Divided, Rooted])
def test_with_five_percent_free_at_the_peak_the_origin_the_cause_and_the_rows_are_named(
    middle: Callable[[], nn.Module], sizes: dict[str, int]
) -> None:
    expected = expected_of(middle)
    weights, _, held = trained(middle, sizes, "off")
    most, whole = torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(most / 0.95 / whole)
    found_weights, found, found_held = trained(middle, sizes, "auto")
    assert where(found) == expected
    assert found.rows == (sizes["rows"] // 2,)
    assert all(map(torch.equal, weights, found_weights))
    assert found_held == held
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        assert math.isclose(torch.cuda.get_per_process_memory_fraction(0), most / 0.95 / whole, rel_tol=1e-6)
    print(f"allocations that failed: {num_failed()}; {found.notes}")


@pytest.mark.parametrize("share", [0.5, 0.05])
@pytest.mark.parametrize("middle", [Divided, Rooted])
def test_with_little_free_when_the_diagnosis_begins_the_origin_is_named(
    middle: Callable[[], nn.Module], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else has taken most of the memory that the step had: of its peak half is free, or a twentieth."""
    expected = expected_of(middle)
    weights, _, held = trained(middle, DEEP, "off")
    most, whole = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    examine = DiagnosisService.examine

    def short_of_memory(self: DiagnosisService, *args: Any, **kwargs: Any) -> Diagnosis:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + share * most) / whole)
        try:
            return examine(self, *args, **kwargs)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    monkeypatch.setattr(DiagnosisService, "examine", short_of_memory)
    found_weights, found, found_held = trained(middle, DEEP, "auto")
    print(f"allocations that failed: {num_failed()}; {found.notes}")
    assert where(found) == expected
    assert found.rows == (DEEP["rows"] // 2,)
    if share == 0.5:
        assert [note for note in found.notes if "lay on the host (a step takes " in note]
    assert all(map(torch.equal, weights, found_weights))
    assert found_held == held


def test_what_it_would_have_needed_is_said_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYGRAD_DIAGNOSIS_SECONDS", "30")  # as for a user; tests have ten times as much
    weights, _, held = trained(Divided, DEEP, "off")
    whole = torch.cuda.get_device_properties(0).total_memory
    examine = DiagnosisService.examine

    def without_memory(self: DiagnosisService, *args: Any, **kwargs: Any) -> Diagnosis:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_allocated() / whole)
        try:
            return examine(self, *args, **kwargs)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    monkeypatch.setattr(DiagnosisService, "examine", without_memory)
    found_weights, found, found_held = trained(Divided, DEEP, "auto")
    print(found.because, found.notes)
    if found.origin is None:  # else a part was found for which the cached blocks sufficed
        assert found.because.startswith(("not diagnosed: needs at least ", "not diagnosed: time limit of 30 s"))
    assert all(map(torch.equal, weights, found_weights))
    assert found_held == held


PROGRAM = """
import sys
import torch
from torch import nn


class Divided(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()


def train(steps, bad):
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (nn.Linear(512, 512, bias=False), nn.Tanh())]
    model = nn.Sequential(*layers, Divided(), nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        batch = torch.randn(65536, 512, device="cuda")
        if step == bad:
            batch[32768] = 0.0
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


whole = torch.cuda.get_device_properties(0).total_memory
if len(sys.argv) > 1:
    torch.cuda.set_per_process_memory_fraction(int(sys.argv[1]) / 0.95 / whole)
    train(8, 5)
else:
    train(3, None)
    print("reserved", torch.cuda.max_memory_reserved())
"""


def test_under_steady_run_a_program_that_barely_fits_ends_well_and_its_origin_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        print(done.stdout, done.stderr)
        assert done.returncode == 0
        return done.stdout + done.stderr

    reserved = run("program.py").split("reserved ")[1].split()[0]
    said = run("-m", "steadygrad.commands", "run", "program.py", reserved)
    assert "7 of 8 updates applied, 1 refused (step 5)" in said
    assert "origin: div" in said
