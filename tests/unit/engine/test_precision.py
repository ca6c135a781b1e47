"""Loss scaling and autocast: what a hand-written loop does, to the bit, and an overflow is no incident."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from specimens import make_guard, same_bits
from torch import Tensor, nn, optim

FORMS: list[dict[str, Any]] = [{"fused": True}, {"foreach": False}]


class Touchy(nn.Module):
    """Running statistics and dropout, so that a refused forward would leave traces."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.norm(self.first(x)))))


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]).float() - batch[:, 8:]).pow(2).mean()


def overflowing(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss whose scaled gradient leaves float32 on its way at a scale of 65536, and at 32768 just does not."""
    loss = loss_fn(model, batch)
    if float(batch[0, 0]) == 77.0:
        loss = loss + (model.head.bias * 1e-34).sum() * 1e34  # type: ignore[union-attr,operator]
    return loss


def data(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, 9, generator=generator) for _ in range(count)]


def nan_batch() -> Tensor:
    bad = data(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def overflow_batch() -> Tensor:
    batch = data(3)[2].clone()
    batch[0, 0] = 77.0
    return batch


def make(form: dict[str, Any], *, scale: float = 1024.0) -> tuple[nn.Module, optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(3)
    model = Touchy()
    optimizer = optim.AdamW(model.parameters(), lr=0.01, **form)
    torch.manual_seed(4)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)


def by_hand(
    it: tuple[nn.Module, optim.Optimizer, torch.amp.GradScaler], batches: Sequence[Tensor], loss: Any = loss_fn,
    accumulate: int = 1,
) -> None:  # fmt: skip
    """The loop of torch's own documentation."""
    model, optimizer, scaler = it
    for number, batch in enumerate(batches):
        value = loss(model, batch)
        scaler.scale(value / accumulate if accumulate > 1 else value).backward()
        if (number + 1) % accumulate:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def bits(model: nn.Module, optimizer: optim.Optimizer, scaler: Any) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.state_dict())
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state |= {f"{number}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    if scaler is not None:
        state |= {"scale": scaler._scale, "growth": scaler._growth_tracker}
    state["rng"] = torch.get_rng_state()
    return state


@pytest.mark.parametrize("mode", ["now", "late"])
@pytest.mark.parametrize("form", FORMS, ids=["fused", "for-loop"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_healthy_scaled_run_is_the_documented_loop(mode: str, form: dict[str, Any], accumulate: int) -> None:
    it = make(form)
    by_hand(it, data(16), accumulate=accumulate)
    expected = bits(*it)
    assert float(it[2]._scale) > 1024.0  # type: ignore[arg-type]  # it grew on the way
    model, optimizer, scaler = make(form)
    with make_guard(model, optimizer, loss_fn, scaler=scaler, max_grad_norm=1.0, settle=mode,
                    accumulate=accumulate) as guard:  # fmt: skip
        for batch in data(16):
            guard.step(batch)
    assert guard.summary()["guard_faults"] == {}
    assert same_bits(expected, bits(model, optimizer, scaler)) == []


@pytest.mark.parametrize("mode", ["now", "late"])
@pytest.mark.parametrize("form", FORMS, ids=["fused", "for-loop"])
@pytest.mark.parametrize("where", [0, 1, 6])
def test_a_nan_batch_leaves_the_scaler_as_it_was(mode: str, form: dict[str, Any], where: int) -> None:
    good = data(9)
    it = make(form)
    by_hand(it, good)
    expected = bits(*it)
    model, optimizer, scaler = make(form)
    with make_guard(model, optimizer, loss_fn, scaler=scaler, max_grad_norm=1.0, settle=mode) as guard:
        for batch in [*good[:where], nan_batch(), *good[where:]]:
            guard.step(batch)
        assert len(guard.incidents) == 1
    assert guard.summary()["overflows"] == 0
    assert same_bits(expected, bits(model, optimizer, scaler)) == []


@pytest.mark.parametrize("mode", ["now", "late"])
@pytest.mark.parametrize("form", FORMS, ids=["fused", "for-loop"])
@pytest.mark.parametrize("where", [0, 4, 9])
def test_an_overflow_backs_the_scale_off_as_torch_does_and_is_no_incident(
    mode: str, form: dict[str, Any], where: int
) -> None:
    good = data(9)
    mixed = [*good[:where], overflow_batch(), overflow_batch(), *good[where:]]
    it = make(form, scale=65536.0)
    scales = []
    for batch in mixed:
        by_hand(it, [batch], overflowing)
        scales.append(float(it[2]._scale))  # type: ignore[arg-type]
    assert any(after == 0.5 * before for before, after in zip([65536.0, *scales], scales, strict=False))
    skipped_by_torch = sum(after < before for before, after in zip([65536.0, *scales], scales, strict=False))
    model, optimizer, scaler = make(form, scale=65536.0)
    with make_guard(model, optimizer, overflowing, scaler=scaler, max_grad_norm=1.0, settle=mode) as guard:
        guarded_scales = []
        for batch in mixed:
            guard.step(batch)
            guard.settle()
            guarded_scales.append(float(scaler._scale))  # type: ignore[arg-type]
        assert guard.incidents == []
        summary = guard.summary()
    assert guarded_scales == scales
    assert summary["overflows"] == summary["skipped"] == skipped_by_torch
    assert summary["guard_faults"] == {}
    # Torch lets a skipped step's batch move running statistics and RNG; the guard does not, so only these agree.
    assert float(scaler._scale) == float(it[2]._scale)  # type: ignore[arg-type]
    assert int(scaler._growth_tracker) == int(it[2]._growth_tracker)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["now", "late"])
def test_an_overflow_leaves_nothing_but_the_smaller_scale(mode: str) -> None:
    """Weights, moments, statistics and random numbers are those of the plain loop, which overflows as well."""
    good = data(6)
    model, optimizer, scaler = make({"fused": True}, scale=2.0**30)
    with make_guard(model, optimizer, overflowing, scaler=scaler, settle=mode) as guard:
        for batch in [overflow_batch(), *good]:
            guard.step(batch)
        assert guard.summary()["overflows"] == 1
    got = bits(model, optimizer, scaler)
    model, optimizer, scaler = make({"fused": True}, scale=2.0**30)
    for batch in [overflow_batch(), *good]:
        scaler.scale(overflowing(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert same_bits(bits(model, optimizer, scaler), got) == []


def plain_scaled(policy_loss: Any, batches: Sequence[Tensor], form: dict[str, Any]) -> dict[str, Any]:
    it = make(form, scale=65536.0)
    by_hand(it, batches, policy_loss)
    return bits(*it)


@pytest.mark.parametrize("mode", ["now", "late"])
@pytest.mark.parametrize("form", FORMS, ids=["fused", "for-loop"])
def test_observing_a_scaled_run_changes_nothing_even_when_it_overflows(mode: str, form: dict[str, Any]) -> None:
    mixed = [*data(3), overflow_batch(), *data(3)]
    expected = plain_scaled(overflowing, mixed, form)
    model, optimizer, scaler = make(form, scale=65536.0)
    with make_guard(model, optimizer, overflowing, scaler=scaler, max_grad_norm=1.0, settle=mode,
                    policy="observe") as guard:  # fmt: skip
        for batch in mixed:
            guard.step(batch)
    assert same_bits(expected, bits(model, optimizer, scaler)) == []


@pytest.mark.parametrize("mode", ["now", "late"])
def test_bf16_precision_is_a_hand_written_autocast_loop(mode: str) -> None:
    model, optimizer, _ = make({"fused": True})
    for batch in data(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    expected = bits(model, optimizer, None)
    model, optimizer, _ = make({"fused": True})
    with make_guard(model, optimizer, loss_fn, precision="bf16", max_grad_norm=1.0, settle=mode) as guard:
        for batch in [*data(6)[:2], nan_batch(), *data(6)[2:]]:
            guard.step(batch)
    assert guard.summary()["skipped"] == 1
    assert same_bits(expected, bits(model, optimizer, None)) == []


@pytest.mark.parametrize("mode", ["now", "late"])
def test_fp16_precision_is_a_hand_written_autocast_loop_with_a_scaler(mode: str) -> None:
    def small_loss(model: nn.Module, batch: Tensor) -> Tensor:
        return loss_fn(model, batch) * 0.01  # so that it does not overflow at torch's first scale

    model, optimizer, _ = make({"fused": True})
    scaler = torch.amp.GradScaler("cpu")
    for batch in data(6):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = small_loss(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    expected = bits(model, optimizer, scaler)
    model, optimizer, _ = make({"fused": True})
    with make_guard(model, optimizer, small_loss, precision="fp16", max_grad_norm=1.0, settle=mode) as guard:
        for batch in [*data(6)[:2], nan_batch(), *data(6)[2:]]:
            guard.step(batch)
        own = guard._loop.program.scaler
    summary = guard.summary()
    assert float(scaler._scale) == 65536.0  # type: ignore[arg-type]
    assert (summary["skipped"], summary["overflows"]) == (1, 0)
    assert same_bits(expected, bits(model, optimizer, own)) == []


def test_a_scaler_that_is_switched_off_is_as_good_as_none() -> None:
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model, optimizer, _ = make({"fused": True})
        with make_guard(model, optimizer, loss_fn, scaler=scaler) as guard:
            for batch in data(4):
                guard.step(batch)
        results.append(bits(model, optimizer, None))
    assert same_bits(*results) == []
