"""What a refusal on a CUDA device must not cost: a halt, bits, or memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import steadygrad as sg

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BAD = 6


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found = [tensor.detach().cpu() for tensor in model.state_dict().values()]
    return found + [v.detach().cpu() for p in model.parameters() for v in optimizer.state.get(p, {}).values()
                    if isinstance(v, Tensor)]  # fmt: skip


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def train(
    entry: str, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Callable[[Any, Any], Tensor],
    data: list[Any], **options: Any,
) -> tuple[list[Tensor], dict[str, Any]]:  # fmt: skip
    if entry == "guard":
        with sg.Guard(model, optimizer, loss_fn, diagnose="off", **options) as guard:
            for batch in data:
                guard.step(batch)
        return state_of(model, optimizer), guard.summary()
    handle = sg.attach(optimizer, model=model) if entry == "attach" else None
    for batch in data:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    if handle is not None:
        handle.close()
    return state_of(model, optimizer), handle.summary() if handle is not None else {}


class Masked(nn.Module):
    """Classes that do not exist have the logit -inf."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.body = nn.Linear(12, 8)
        bias = torch.zeros(8)
        bias[5:] = -math.inf
        self.bias = nn.Parameter(bias, requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.bias
        return out


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("entry", ["guard", "attach"])
@pytest.mark.parametrize("fused", [True, False])
def test_infinities_on_purpose_do_not_halt_a_run_at_a_bad_batch(entry: str, trained: bool, fused: bool) -> None:
    def run(entry: str, bad: bool) -> tuple[list[Tensor], dict[str, Any]]:
        torch.manual_seed(1)
        model = Masked(trained).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=fused)
        generator = torch.Generator().manual_seed(3)
        data = [(torch.randn(8, 12, generator=generator).cuda(), torch.randint(0, 5, (8,), generator=generator).cuda())
                for _ in range(12)]  # fmt: skip
        if bad:
            data.insert(BAD, (torch.full((8, 12), math.nan, device="cuda"), data[0][1]))
        return train(entry, model, optimizer, lambda m, b: functional.cross_entropy(m(b[0]), b[1]), data)

    got, summary = run(entry, True)
    assert (summary["applied"], summary["skipped"], summary["halted"]) == (12, 1, False)
    assert same(run("plain", False)[0], got)


@pytest.mark.parametrize("entry", ["guard", "attach"])
def test_an_update_of_half_precision_that_makes_infinities_is_undone_to_the_bit(entry: str) -> None:
    def run(entry: str, bad: int | None, left_out: int | None = None) -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(8, 1).cuda().half()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-15, weight_decay=0.0, fused=True)
        generator = torch.Generator().manual_seed(3)
        data = [torch.randn(32, 9, generator=generator) for _ in range(14)]
        for number, batch in enumerate(data):
            batch[:, 0] = 0.0 if number == bad else 0.002 * (0.5 + batch[:, 0].abs())
        data = [batch.half().cuda() for number, batch in enumerate(data) if number != left_out]
        return train(entry, model, optimizer, half_loss, data)[0]

    assert not all(tensor.isfinite().all() for tensor in run("plain", BAD))
    assert same(run("plain", None, left_out=BAD), run(entry, BAD))
    assert same(run("plain", None), run(entry, None))


def half_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]).float() - batch[:, 8:].float()).pow(2).mean()


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("through_data", [False, True])
def test_one_buffer_that_is_refilled_is_run_again_with_what_was_fed(accumulate: int, through_data: bool) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    generator = torch.Generator().manual_seed(3)
    good = [torch.randn(16, 9, generator=generator).cuda() for _ in range(16)]
    bad = good[0].clone()
    bad[4, 8] = math.nan
    model, optimizer = build()
    for number, batch in enumerate(good):
        (loss_fn(model, batch) / accumulate).backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    plain = state_of(model, optimizer)
    model, optimizer = build()
    buffer = torch.empty(16, 9, device="cuda")
    with sg.Guard(model, optimizer, loss_fn, accumulate=accumulate) as guard:
        for batch in [*good[:BAD], bad, *good[BAD:]]:
            (buffer.data if through_data else buffer).copy_(batch)
            guard.step(buffer)
    assert same(plain, state_of(model, optimizer))
    assert guard.incidents[0].diagnosis is not None
    assert guard.incidents[0].diagnosis.cause is not None
    assert guard.incidents[0].diagnosis.cause.slug == "bad_input"


@pytest.mark.parametrize("diagnose", ["auto", "off"])
def test_a_refusal_fits_where_wide_layers_leave_no_memory(diagnose: str) -> None:
    """Batches as large as an activation, one of which is fed again and again: no copy of it, no second pass."""
    width, rows = 2048, 4096

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
        model = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]).squeeze(1).pow(2) * batch[1]).sum() / batch[1].sum()

    x = torch.randn(rows, width, device="cuda")
    good, bad = (x, torch.ones(rows, device="cuda")), (x, torch.zeros(rows, device="cuda"))

    def plain() -> list[Tensor]:
        model, optimizer = build()
        for _ in range(13):
            loss_fn(model, good).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return state_of(model, optimizer)

    def fresh() -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    fresh()
    plain()
    most, whole = torch.cuda.max_memory_reserved(), torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction(most * 1.02 / whole)
        fresh()
        expected = plain()
        fresh()
        model, optimizer = build()
        with sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, diagnose=diagnose) as guard:
            for step in range(14):
                guard.step(bad if step == 7 else good)
        assert guard.summary()["skipped"] == 1
        assert same(expected, state_of(model, optimizer))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
