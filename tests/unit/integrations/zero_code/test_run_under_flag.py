"""Updates made under a device flag and judged behind it: the plain loop's bits, and no trace of what was refused.

On a GPU this is how fused optimizers are watched. A CPU's fused kernels take the same flag, so here they stand in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from steadygrad.integrations.optimizer import update_numbers

FUSED: dict[str, Callable[[Any], optim.Optimizer]] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
}


@pytest.fixture(autouse=True)
def _cpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_numbers, "ON_DEVICE", ("cpu",))


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(8, 5, generator=generator) for _ in range(count)]


def bad(value: float = math.nan) -> Tensor:
    batch = batches(1)[0].clone()
    batch[2, 1] = value
    return batch


def train(kind: str, data: Sequence[Tensor], clip: float | None) -> dict[str, Any]:
    """A plain loop; returns everything it has moved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = FUSED[kind](model.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    for batch in data:
        optimizer.zero_grad()
        loss = (model(batch[:, :4]) - batch[:, 4:]).square().mean()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        assert not hasattr(optimizer, "found_inf")
    moved: dict[str, Any] = {f"model.{name}": value.clone() for name, value in model.state_dict().items()}
    for place, parameter in enumerate(model.parameters()):
        for name, value in optimizer.state[parameter].items():
            moved[f"optimizer.{place}.{name}"] = value.clone() if isinstance(value, Tensor) else value
    return {**moved, "lr": optimizer.param_groups[0]["lr"], "rng": torch.get_rng_state(), "epoch": schedule.last_epoch}


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    assert a.keys() == b.keys()
    return [k for k in a if not (torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) else a[k] == b[k])]


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("where", [0, 1, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_refused_update_leaves_no_trace(
    watching: Callable[..., Any], kind: str, clip: float | None, where: int, value: float
) -> None:
    good = batches(6)
    expected = train(kind, good, clip)
    watch = watching()
    found = train(kind, [*good[:where], bad(value), *good[where:]], clip)
    assert differing(expected, found) == []
    (log,) = watch.ledger.log
    assert (log.ledger.applied, log.ledger.skipped) == (6, 1)
    assert [incident.first_step for incident in log.incidents] == [where]


def test_the_path_under_the_flag_is_the_one_taken(
    watching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_numbers.UpdateNumbers, "read", lambda *_: pytest.fail("the host read before the update"))
    watch = watching()
    train("adamw", batches(3), 1.0)
    assert dict(watch.barrier.faults) == {}


def test_the_journal_holds_the_norm_from_before_clipping(
    watching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def norms() -> list[float]:
        watch = watching()
        train("adamw", batches(4), 0.01)
        (log,) = watch.ledger.log
        watch.stop()
        return [record.grad_norm for record in log.recent]

    under_flag = norms()
    monkeypatch.setattr(update_numbers, "ON_DEVICE", ())
    assert under_flag == norms()
    assert min(under_flag) > 0.01


def test_a_step_that_raises_leaves_no_flag_for_the_next(watching: Callable[..., Any]) -> None:
    watch = watching()
    parameter = nn.Parameter(torch.ones(3))
    optimizer = optim.AdamW([parameter], lr=0.1, fused=True)
    parameter.square().sum().backward()
    group = optimizer.param_groups[0]
    betas, group["betas"] = group["betas"], "nonsense"
    with pytest.raises(ValueError, match="unpack"):
        optimizer.step()
    group["betas"] = betas
    before = parameter.detach().clone()
    optimizer.step()
    assert not torch.equal(before, parameter)
    assert not hasattr(optimizer, "found_inf")
    assert dict(watch.barrier.faults) == {}


def test_a_scaler_brings_its_own_flag(watching: Callable[..., Any]) -> None:
    """Its overflow stays its own business and is no incident."""
    watch = watching()
    parameter = nn.Parameter(torch.ones(3))
    optimizer = optim.AdamW([parameter], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale((parameter * 8.0).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.isfinite(parameter).all()
    (log,) = watch.ledger.log
    assert not log.incidents
    assert log.ledger.overflows > 0
