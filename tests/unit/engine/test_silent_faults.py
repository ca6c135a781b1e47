"""A flipped bit in a weight, a moment or a gradient leaves no trace, and what a program writes is never undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_writes import WRITES, Average, Small, batches, bits, loss_fn, make, write
from torch import nn

import steadygrad as sg
from steadygrad.records.rerun_flag import rerunning
from steadygrad.testing.fault_kinds import Flip, flip_bits

Before = Callable[[Small, torch.optim.Optimizer, int], None]


def nothing(_: Small, __: torch.optim.Optimizer, ___: int) -> None: ...


def plain(before: Before, kind: str = "adam", *, fused: bool = False) -> list[bytes]:
    model, optimizer = make(kind)
    for group in optimizer.param_groups:
        group["fused"] = fused
    for step, batch in enumerate(batches()):
        before(model, optimizer, step)
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return bits(model, optimizer)


def guarded(before: Before, entry: str, kind: str = "adam") -> tuple[list[bytes], Any]:
    model, optimizer = make(kind)
    if entry == "guard":
        guard: Any = sg.Guard(model, optimizer, loss_fn, diagnose="off")
        for step, batch in enumerate(batches()):
            before(model, optimizer, step)
            guard.step(batch)
    else:
        guard = sg.attach(optimizer, model=model)
        for step, batch in enumerate(batches()):
            before(model, optimizer, step)
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
    end = bits(model, optimizer)
    guard.close()
    return end, guard


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("entry", ["guard", "attach"])
@pytest.mark.parametrize("name", WRITES)
def test_what_a_program_writes_into_its_weights_and_moments_stays(name: str, entry: str, kind: str) -> None:
    def writes() -> Before:
        average = Average()
        return lambda model, optimizer, step: write(name, model, optimizer, average, step)

    end, guard = guarded(writes(), entry, kind)
    assert end == plain(writes(), kind)
    assert guard.incidents == []
    assert guard.summary()["guard_faults"] == {}


def flips(target: str, flip: Flip, at: int = 12) -> Before:
    """A fault before step `at` in the tensor that is called so."""

    def before(model: Small, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == at:
            name, _, moment = target.partition(":")
            tensor = dict(model.named_parameters())[name]
            flip_bits(optimizer.state[tensor][moment] if moment else tensor, flip)

    return before


MASKS = {
    "sign": 1 << 31,
    "2^64": 1 << 29,
    "2^16": 1 << 27,
    "16": 1 << 25,
    "2": 1 << 23,
    "upper mantissa": 1 << 22,
    "several": 0x4A10_0410,
    "several, smaller": 0x0310_0001,
}
TARGETS = ["body.weight", "embed.weight", "norm.weight", "head.bias", "body.weight:exp_avg", "head.weight:exp_avg_sq"]


@pytest.mark.parametrize("entry", ["guard", "attach"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_flipped_bit_leaves_no_trace(mask: str, target: str, entry: str) -> None:
    end, guard = guarded(flips(target, Flip(place=3, mask=MASKS[mask])), entry)
    assert end == plain(nothing)
    (incident,) = guard.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause.code == "DX404"
    assert incident.first_step == 12
    assert target.partition(":")[0] in incident.headline
    assert "cpu" in incident.headline
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("entry", ["guard", "attach"])
@pytest.mark.parametrize("mask", [1 << 25, 1 << 31, 0x4210_0000])
def test_one_fault_in_32_neighbours_leaves_no_trace(mask: int, entry: str) -> None:
    end, guard = guarded(flips("body.weight", Flip(place=70, mask=mask, run=32)), entry)
    assert end == plain(nothing)
    assert "and 31 neighbours" in guard.incidents[0].headline


@pytest.mark.parametrize("entry", ["guard", "attach"])
def test_a_fault_that_makes_a_value_non_finite_is_restored_without_a_rollback(entry: str) -> None:
    def before(model: Small, _: torch.optim.Optimizer, step: int) -> None:
        if step == 12:
            flat = model.body.weight.data.view(-1).view(torch.int32)
            flat[9] = flat[9] | 0x7F80_0000

    end, guard = guarded(before, entry)
    assert end == plain(nothing)
    assert guard.summary()["rolled_back"] == guard.summary()["skipped"] == 0


def test_a_weight_that_flips_during_the_step_is_restored_and_the_step_is_run_again() -> None:
    model, optimizer = make()
    struck = []

    def strike(*_: Any) -> None:
        if not rerunning() and len(struck) == 10:
            flip_bits(model.head.weight, Flip(place=7, mask=1 << 27))
        struck.append(1)

    model.norm.register_forward_pre_hook(strike)
    with sg.Guard(model, optimizer, loss_fn, diagnose="off") as guard:
        for batch in batches():
            assert guard.step(batch).applied
    assert bits(model, optimizer) == plain(nothing)
    assert len(guard.incidents) == 1


@pytest.mark.parametrize("settle", ["now", "late"])
@pytest.mark.parametrize("mask", [1 << 30, 0x4010_0400, 0xC800_0001])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_miscomputed_gradient_is_computed_again(kind: str, mask: int, settle: str) -> None:
    model, optimizer = make(kind)
    for group in optimizer.param_groups:
        group["fused"] = settle == "late"
    parameter = model.head.weight

    def strike(gradient: torch.Tensor) -> torch.Tensor:
        if rerunning():
            return gradient
        handle.remove()
        gradient = gradient.clone()
        flip_bits(gradient, Flip(place=5, mask=mask))
        return gradient

    with sg.Guard(model, optimizer, loss_fn, diagnose="off", settle=settle, self_check="1%") as guard:
        for step, batch in enumerate(batches()):
            if step == 20:
                handle = parameter.register_hook(strike)  # type: ignore[no-untyped-call]
            guard.step(batch)
    assert guard.summary()["skipped"] == 0
    assert bits(model, optimizer) == plain(nothing, kind, fused=settle == "late")
    (incident,) = guard.incidents
    assert "head.weight" in incident.headline
    assert incident.findings[0].code == "SY417"


def test_a_gradient_that_is_large_by_itself_is_applied_as_in_the_plain_loop() -> None:
    def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss_fn(model, batch[:2]) * batch[2]

    data = [(*batch, 1e4 if step in (18, 20, 21, 22) else 1.0) for step, batch in enumerate(batches())]
    model, optimizer = make()
    for batch in data:
        optimizer.zero_grad()
        scaled(model, batch).backward()
        optimizer.step()
    other, other_optimizer = make()
    with sg.Guard(other, other_optimizer, scaled, diagnose="off") as guard:
        for batch in data:
            assert guard.step(batch).applied
    assert bits(other, other_optimizer) == bits(model, optimizer)
    assert guard.incidents == []


def test_a_tensor_that_keeps_changing_is_left_alone_after_three_times() -> None:
    def before(model: Small, _: torch.optim.Optimizer, step: int) -> None:
        if step > 4:
            flip_bits(model.body.weight, Flip(place=step, mask=1 << 22))

    _, guard = guarded(before, "guard")
    assert len(guard.incidents) == 3


def late(before: Before) -> tuple[list[bytes], Any]:
    """Judged one step late, as on a GPU: the device refuses by itself."""
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, fused=True)
    guard = sg.Guard(model, optimizer, loss_fn, diagnose="off", settle="late")
    for step, batch in enumerate(batches()):
        before(model, optimizer, step)
        guard.step(batch)
    guard.settle()
    end = bits(model, optimizer)
    guard.close()
    assert guard.summary()["settles"] == "late"
    return end, guard


def fused(before: Before) -> list[bytes]:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, fused=True)
    for step, batch in enumerate(batches()):
        before(model, optimizer, step)
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return bits(model, optimizer)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_flipped_bit_leaves_no_trace_where_the_host_reads_late(mask: str, target: str) -> None:
    end, guard = late(flips(target, Flip(place=3, mask=MASKS[mask])))
    assert end == fused(nothing)
    assert len(guard.incidents) == 1
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("name", WRITES)
def test_what_a_program_writes_stays_where_the_host_reads_late(name: str) -> None:
    def writes() -> Before:
        average = Average()
        return lambda model, optimizer, step: write(name, model, optimizer, average, step)

    end, guard = late(writes())
    assert end == fused(writes())
    assert guard.incidents == []
    assert guard.summary()["skipped"] == 0


@pytest.mark.parametrize("settle", ["now", "late"])
def test_a_program_that_writes_at_every_step_is_not_run_twice_for_it(settle: str) -> None:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, fused=True)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with sg.Guard(model, optimizer, loss_fn, diagnose="off", settle=settle) as guard:
        for batch in batches(60):
            guard.step(batch)
            for parameter in model.parameters():
                parameter.data.clamp_(-0.35, 0.35)
    assert len(calls) <= 60 + 12
    assert guard.incidents == []
