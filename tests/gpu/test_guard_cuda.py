"""The guard on a CUDA device: exact when late, silent towards the host, and back from pinned memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad import Policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SKIP_ONLY = Policy.named("balanced").but(escalation=(), skip_streak_halt=10_000, skips_per_window=(10_000, 200))
FUSED: dict[str, Any] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adamw-amsgrad": lambda p: optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "sgd": lambda p: optim.SGD(p, lr=0.05, fused=True),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "sgd-dampening": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5, fused=True),
}


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Bits can only be compared where the step itself gives the same ones twice."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.first(x)))))


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :32]).float() - batch[:, 32:]).pow(2).mean()


def data(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 33, generator=generator).cuda() for _ in range(count)]


def nan_batch() -> Tensor:
    bad = data(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def make(kind: str = "adamw", dtype: torch.dtype = torch.float32) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = Net().to("cuda", dtype)
    optimizer = FUSED[kind](model.parameters())
    torch.manual_seed(7)
    return model, optimizer


def plainly(kind: str, batches: Sequence[Tensor], clip: float | None = 1.0) -> dict[str, Any]:
    model, optimizer = make(kind)
    for batch in batches:
        loss_fn(model, batch).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return bits(model, optimizer)


def bits(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = {name: value.cpu() for name, value in model.state_dict().items()}
    for number, parameter in enumerate(model.parameters()):
        held = optimizer.state.get(parameter, {})
        state |= {f"{number}.{key}": value.cpu() for key, value in held.items() if isinstance(value, Tensor)}
    state["rng"] = torch.cuda.get_rng_state()
    return state


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    assert len(a) > 8
    return [name for name in {*a, *b} if name not in a or name not in b or not _same(a[name], b[name])]


def _same(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))


def guard_of(model: nn.Module, optimizer: Any, **options: Any) -> sg.Guard:
    options = {"policy": SKIP_ONLY, "diagnose": "off", "max_grad_norm": 1.0, **options}
    return sg.Guard(model, optimizer, options.pop("loss_fn", loss_fn), **options)


@pytest.mark.parametrize("kind", FUSED)
def test_a_healthy_late_run_is_the_plain_loop(kind: str) -> None:
    expected = plainly(kind, data(8))
    model, optimizer = make(kind)
    with guard_of(model, optimizer) as guard:
        for batch in data(8):
            guard.step(batch)
        assert guard.summary()["settles"] == "late"
    assert guard.summary()["guard_faults"] == {}
    assert differing(expected, bits(model, optimizer)) == []


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("where", [0, 1, 5, 8])
def test_a_refused_step_leaves_no_trace_when_settled_late(kind: str, where: int) -> None:
    good = data(8)
    expected = plainly(kind, good)
    model, optimizer = make(kind)
    with guard_of(model, optimizer) as guard:
        for batch in [*good[:where], nan_batch(), *good[where:]]:
            guard.step(batch)
    summary = guard.summary()
    assert (summary["applied"], summary["skipped"], summary["settles"]) == (8, 1, "late")
    assert differing(expected, bits(model, optimizer)) == []


@pytest.mark.parametrize("clip", ["exact", "folded"])
def test_a_healthy_step_never_waits_for_the_device(clip: str, tmp_path: Path) -> None:
    """torch raises at every synchronising call inside these steps; sampled steps are left out by their schedule."""
    model, optimizer = make()
    batches = data(16)
    policy = SKIP_ONLY.but(snapshot_every=10_000, vitals_every=10_000)
    with guard_of(model, optimizer, clip=clip, policy=policy, run_dir=tmp_path) as guard:
        for batch in batches[:6]:  # the first steps make state, look at buffers and take the first snapshot
            guard.step(batch)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches[6:]:
                guard.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        summary = guard.summary()
    assert summary["applied"] == 16
    assert summary["guard_faults"] == {}
    assert not summary["standing_down"]


def test_sync_debug_mode_would_have_noticed() -> None:
    """The twin of the test above."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(4, device="cuda").sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_fp16_overflows_lower_the_scale_and_are_no_incidents() -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30, growth_interval=1000)
    with guard_of(model, optimizer, precision="fp16", scaler=scaler) as guard:
        for batch in data(30):
            guard.step(batch)
        summary = guard.summary()
        incidents = guard.incidents
    assert summary["overflows"] >= 1
    assert summary["skipped"] == summary["overflows"]
    assert scaler.get_scale() == 2.0 ** (30 - summary["overflows"])
    assert summary["applied"] == 30 - summary["overflows"]
    assert incidents == []
    assert all(p.isfinite().all() for p in model.parameters())


def test_fp16_precision_is_the_documented_loop() -> None:
    good = data(8)
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    for batch in good:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 256.0
    expected = bits(model, optimizer)
    model, optimizer = make()
    mine = torch.amp.GradScaler("cuda", init_scale=256.0)
    with guard_of(model, optimizer, precision="fp16", scaler=mine) as guard:
        for batch in [*good[:3], nan_batch(), *good[3:]]:
            guard.step(batch)
    assert guard.summary()["skipped"] == 1
    assert mine.get_scale() == 256.0
    assert differing(expected, bits(model, optimizer)) == []


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("kind", ["adamw", "sgd-momentum"])
def test_a_poisoned_weight_is_rolled_back_to_the_bit(where: str, kind: str) -> None:
    good = data(16)
    expected = plainly(kind, good)
    model, optimizer = make(kind)
    with guard_of(model, optimizer, snapshots=where, policy=SKIP_ONLY.but(snapshot_every=4)) as guard:
        for number, batch in enumerate(good):
            if number == 10:
                guard.settle()
                model.first.weight.data[0, 0] = math.nan  # type: ignore[union-attr,operator]
            guard.step(batch)
        summary = guard.summary()
    assert summary["rolled_back"] == 1
    assert summary["guard_faults"] == {}
    assert differing(expected, bits(model, optimizer)) == []


def test_a_copy_on_the_host_has_the_buffers_from_before_the_forward_however_late_it_is_made() -> None:
    model, optimizer = make()
    with guard_of(model, optimizer, snapshots="host", policy=SKIP_ONLY.but(snapshot_every=1000)) as guard:
        for batch in data(3):
            guard.step(batch)
        guard.settle()
        ring = guard._loop.recovery._ring
        assert ring is not None
        before = {name: buffer.detach().cpu() for name, buffer in model.named_buffers()}
        with torch.cuda.stream(ring._stream):
            torch.cuda._sleep(500_000_000)  # the copies come a good while after the forward has been asked for
        taken = ring.take(3)
        for batch in data(2):
            loss_fn(model, batch)
        ring.wait_for_copies()
        torch.cuda.synchronize()
        copied = dict(taken.tree["buffers"])
        after = {name: buffer.detach().cpu() for name, buffer in model.named_buffers()}
        assert any(not torch.equal(after[name], before[name]) for name in before)
        for name, buffer in before.items():
            (kept,) = [value for key, value in copied.items() if key.endswith(name)]
            assert torch.equal(kept, buffer), name


def test_a_run_resumes_with_its_fused_state_on_the_device(tmp_path: Path) -> None:
    good = data(16)
    expected = plainly("adamw", good)
    for upto in (7, 16):
        model, optimizer = make("adamw")
        guard = guard_of(model, optimizer, run_dir=tmp_path, checkpoint_every=5, resume=True)
        for batch in good[guard.batches_seen : upto]:
            guard.step(batch)
        assert guard.summary()["guard_faults"] == {}
        assert guard.summary()["settles"] == "late"
        guard.close()
    assert all(v.device.type == "cuda" for s in optimizer.state.values() for v in s.values())
    assert differing(expected, bits(model, optimizer)) == []


def test_a_ring_in_host_memory_takes_no_device_memory() -> None:
    model, optimizer = make()
    with guard_of(model, optimizer, snapshots="host", policy=SKIP_ONLY.but(snapshot_every=2)) as guard:
        for batch in data(6):
            guard.step(batch)
        guard.settle()
        ring = guard._loop.recovery._ring
        assert ring is not None
        kept: list[Tensor] = [t for snapshot in ring._ring for t in snapshot.tree["parameters"].values()]
        assert kept
        assert all(t.device.type == "cpu" and t.is_pinned() for t in kept)


# -- the recorded seal: played or launched one by one, the same kernels with the same bits


def sealed_by(guard: sg.Guard) -> list[Any]:
    return list(guard._loop.parts.device_check._kept.values())


@pytest.mark.parametrize("clip", ["exact", "folded"])
def test_the_seal_is_recorded_and_a_recorded_run_has_the_bits_of_one_that_is_not(
    clip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [*data(8), nan_batch(), *data(6), nan_batch(), *data(3)]

    def run() -> tuple[dict[str, Any], list[Any], list[tuple[int, float]]]:
        model, optimizer = make()
        with sg.Guard(model, optimizer, loss_fn, max_grad_norm=0.1, clip=clip, policy=SKIP_ONLY, diagnose="off") as it:
            for batch in batches:
                it.step(batch)
            it.settle()
            return bits(model, optimizer), sealed_by(it), [(r.step, r.grad_norm) for r in it._log.recent]

    recorded, seals, steps = run()
    assert any(seal._graph is not None for seal in seals)
    monkeypatch.setattr("steadygrad.engine.step.device_check._RECORD_AFTER", 10_000)
    launched, seals, steps_too = run()
    assert all(seal._graph is None for seal in seals)
    assert recorded.keys() == launched.keys()
    assert all(torch.equal(recorded[name], launched[name]) for name in recorded)
    assert [number for number, _ in steps] == [number for number, _ in steps_too]
    good = [(a[1], b[1]) for a, b in zip(steps, steps_too, strict=True) if math.isfinite(a[1])]
    assert all(a == b for a, b in good)


def test_limits_that_move_reach_a_recorded_seal() -> None:
    """A spike far above what was normal is refused on the device, long after the seal was recorded."""
    model, optimizer = make()
    policy = SKIP_ONLY.but(spike_min_samples=8, refuse_spikes=True)
    with sg.Guard(model, optimizer, loss_fn, max_grad_norm=0.01, policy=policy, diagnose="off") as guard:
        for batch in data(40):
            guard.step(batch)
        outcome = guard.step(data(1)[0] * 1e4)
        guard.step(data(1)[0])
        assert any(seal._graph is not None for seal in sealed_by(guard))
        assert not outcome.applied
        assert guard.summary()["skipped"] == 1


def test_several_layouts_are_recorded_apart() -> None:
    """Terms that come and go make rows of another shape; each has its own place and its own limits."""

    def terms(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        loss = loss_fn(model, batch)
        return {"loss": loss, "extra": loss.detach() * 2} if batch[0, 0] > 0 else {"loss": loss}

    model, optimizer = make()
    batches = data(24)
    with sg.Guard(model, optimizer, terms, max_grad_norm=1.0, policy=SKIP_ONLY, diagnose="off") as guard:
        for batch in batches:
            guard.step(batch)
        guard.settle()
        assert len([seal for seal in sealed_by(guard) if seal._graph is not None]) == 2
    reference, their_optimizer = make()  # seeds as it did for the other
    for batch in batches:
        loss_fn(reference, batch).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        their_optimizer.step()
        their_optimizer.zero_grad()
    ours, plain = bits(model, optimizer), bits(reference, their_optimizer)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
