"""The device gate: the flag's value, torch's uninitialised momentum, checkpoints that unfuse, groups."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from specimens import make_guard, same_bits
from torch import Tensor, nn, optim

from steadygrad.detect.history import RefusalLimits
from steadygrad.engine.step import device_gate as gate_room
from steadygrad.engine.step.device_check import DeviceCheck
from steadygrad.engine.step.step_row import RowReader


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()


def data(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, 9, generator=generator) for _ in range(count)]


def nan_batch() -> Tensor:
    bad = data(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def bits(model: nn.Module, *optimizers: optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.state_dict())
    for which, optimizer in enumerate(optimizers):
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            held = optimizer.state.get(parameter, {})
            state |= {f"{which}.{number}.{key}": value for key, value in held.items() if value is not None}
        state[f"{which}.lr"] = [group["lr"] for group in optimizer.param_groups]
    return state


@pytest.fixture
def dirty_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch allocates and leaves unwritten reads as NaN, whatever the allocator does."""
    honest = torch.empty_like

    def dirty(like: Tensor, **options: Any) -> Tensor:
        fresh = honest(like, **options)
        return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

    monkeypatch.setattr(torch, "empty_like", dirty)


@pytest.mark.usefixtures("dirty_heap")
@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.5}])
@pytest.mark.parametrize("bad_steps", [1, 3])
def test_fused_sgd_refused_on_its_first_steps_keeps_no_garbage_as_momentum(
    options: dict[str, Any], bad_steps: int
) -> None:
    def make() -> tuple[nn.Module, optim.Optimizer]:
        model = network()
        return model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True, **options)

    good = data(4)
    model, optimizer = make()
    for batch in good:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = bits(model, optimizer)
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, settle="late", snapshots="off") as guard:
        for batch in [nan_batch()] * bad_steps + good:
            guard.step(batch)
    assert guard.summary()["skipped"] == bad_steps
    assert guard.summary()["settles"] == "late"
    assert same_bits(expected, bits(model, optimizer)) == []


@pytest.mark.usefixtures("dirty_heap")
def test_torch_itself_keeps_garbage_there() -> None:
    """The twin of the test above: without the guard's care the same memory ends up as momentum."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    weight.grad = torch.ones(4)
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), None  # type: ignore[attr-defined]
    optimizer.step()
    assert optimizer.state[weight]["momentum_buffer"].isnan().all()


def test_the_flag_is_exactly_zero_or_one_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    honest = gate_room.DeviceGate.step

    def watched(self: Any, found_inf: Tensor, grad_scale: Tensor | None = None) -> None:
        seen.append(found_inf.clone())
        honest(self, found_inf, grad_scale)

    monkeypatch.setattr(gate_room.DeviceGate, "step", watched)
    model = network()
    inf_batch = data(1)[0].clone()
    inf_batch[0, 8] = math.inf
    huge = data(1)[0].clone()
    huge[:, 8] = 1e19
    with make_guard(model, optim.AdamW(model.parameters(), fused=True), loss_fn, settle="late") as guard:
        for batch in [data(1)[0], nan_batch(), data(1)[0], inf_batch, data(1)[0], huge]:
            guard.step(batch)
    assert all(flag.dtype is torch.float32 and flag.dim() == 0 for flag in seen)
    # A batch behind a refused one is run again on the host path, so it passes the gate once or not at all.
    assert {float(flag) for flag in seen} == {0.0, 1.0}
    assert guard.summary()["skipped"] == 3


def test_the_flag_stays_one_however_many_things_are_wrong() -> None:
    """Torch's own scaler adds flags up, and a flag of 2 lets the update through."""
    from steadygrad.detect.gradient_norms import GradientProbe

    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.full((2,), math.nan)
    readout = RowReader(["a", "b", "c"], torch.device("cpu"))
    nan = torch.tensor(math.nan)
    row = readout.pack(GradientProbe(parameters).measure(), [{"loss": nan, "term": nan}] * 3, None)
    sealed = DeviceCheck(torch.device("cpu")).seal(row, RefusalLimits(1.0, 1.0), refuses=True, rule=None)
    flag = sealed.flag
    assert flag.dtype is torch.float32
    assert flag.dim() == 0
    assert float(flag) == sealed.row_transfer.values()[-1] == 1.0


@pytest.mark.parametrize("then", ["good", "nan"])
@pytest.mark.parametrize("last", ["good", "nan"])
def test_a_checkpoint_that_unfuses_the_optimizer_is_noticed_and_stays_exact(last: str, then: str) -> None:
    """`last` is the step still in flight when the state is loaded, `then` the first one after it."""
    good = data(9)

    def unfused_checkpoint() -> dict[str, Any]:
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        loss_fn(model, good[8]).backward()
        optimizer.step()
        return copy.deepcopy(optimizer.state_dict())

    def make() -> tuple[nn.Module, optim.Optimizer, Any]:
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=0.01, fused=True)
        return model, optimizer, optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    model, optimizer, scheduler = make()
    for number, batch in enumerate(good[:6]):
        if number == 3:
            optimizer.load_state_dict(unfused_checkpoint())
        loss_fn(model, batch).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    expected = bits(model, optimizer) | {"epoch": scheduler.last_epoch}

    model, optimizer, scheduler = make()
    with make_guard(model, optimizer, loss_fn, scheduler=scheduler, settle="late") as guard:
        for batch in good[:3] + ([nan_batch()] if last == "nan" else []):
            guard.step(batch)
        assert guard._loop.late()
        optimizer.load_state_dict(unfused_checkpoint())
        assert not optimizer.param_groups[0]["fused"]
        for batch in ([nan_batch()] if then == "nan" else []) + good[3:6]:
            guard.step(batch)
        assert guard.summary()["settles"] == "now"
        assert guard.summary()["applied"] == 6
        assert guard.summary()["guard_faults"] == {}
    assert same_bits(expected, bits(model, optimizer) | {"epoch": scheduler.last_epoch}) == []


@pytest.mark.parametrize("where", [0, 3])
def test_one_group_that_is_not_fused_takes_the_host_path_for_all(where: int) -> None:
    def make() -> tuple[nn.Module, optim.Optimizer]:
        model = network()
        groups = [
            {"params": model[0].parameters(), "lr": 0.01},
            {"params": [*model[1].parameters(), *model[3].parameters()], "lr": 0.05, "fused": False},
        ]
        return model, optim.AdamW(groups, fused=True)

    good = data(5)
    model, optimizer = make()
    for batch in good:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = bits(model, optimizer)
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, settle="late") as guard:
        for batch in [*good[:where], nan_batch(), *good[where:]]:
            guard.step(batch)
        assert guard.summary()["settles"] == "now"
    assert same_bits(expected, bits(model, optimizer)) == []


@pytest.mark.parametrize("second", ["fused", "foreach"])
@pytest.mark.parametrize("where", [0, 3])
def test_several_optimizers_refuse_together(second: str, where: int) -> None:
    def make() -> tuple[nn.Module, list[optim.Optimizer]]:
        model = network()
        tail = [*model[1].parameters(), *model[3].parameters()]
        how: dict[str, Any] = {second: True}
        return model, [
            optim.AdamW(model[0].parameters(), lr=0.01, fused=True),
            optim.SGD(tail, lr=0.05, momentum=0.9, **how),
        ]

    good = data(5)
    model, optimizers = make()
    for batch in good:
        loss_fn(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    expected = bits(model, *optimizers)
    model, optimizers = make()
    with make_guard(model, optimizers, loss_fn, settle="late", max_grad_norm=0.5) as guard:
        for batch in [*good[:where], nan_batch(), *good[where:]]:
            guard.step(batch)
        assert guard.summary()["settles"] == ("late" if second == "fused" else "now")
    assert same_bits(expected, bits(model, *optimizers)) == []


@pytest.mark.parametrize("mode", ["now", "late"])
def test_a_step_hook_never_runs_on_a_refused_step(mode: str) -> None:
    ran: list[int] = []
    model = network()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
        guard.step(data(1)[0])
        optimizer.register_step_post_hook(lambda *_: ran.append(1))
        for batch in [nan_batch(), data(1)[0], nan_batch()]:
            guard.step(batch)
        assert guard.summary()["skipped"] == 2
    assert len(ran) == 1
