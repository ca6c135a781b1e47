"""`self_check`: steps are computed twice; what differs is named, and a run without a difference keeps its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_writes import Small, batches, bits, loss_fn, make
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.records.errors import UsageError


def train(loss: Callable[[nn.Module, Any], Tensor], *, settle: str = "auto", **options: Any) -> tuple[Any, list[bytes]]:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, fused=settle == "late")
    with sg.Guard(model, optimizer, loss, diagnose="off", settle=settle, **options) as guard:
        for batch in batches():
            assert guard.step(batch).applied
    return guard, bits(model, optimizer)


def noisy(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.dropout(model(batch[0]), 0.2), batch[1])


@pytest.mark.parametrize("settle", ["now", "late"])
@pytest.mark.parametrize("loss", [loss_fn, noisy])
def test_a_run_that_repeats_keeps_its_bits(loss: Any, settle: str) -> None:
    calls: list[int] = []

    def counted(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        return loss(model, batch)

    torch.manual_seed(3)
    checked, end = train(counted, settle=settle, self_check="25%")
    torch.manual_seed(3)
    _, without = train(loss, settle=settle)
    assert end == without
    assert checked.incidents == []
    assert len(calls) >= 24 + 6


class Drifting(torch.autograd.Function):
    """An operation that gives another result each time."""

    drift = 0.0

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        Drifting.drift += 1e-6
        return torch.ops.steadygrad_test.drift(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


LIBRARY = torch.library.Library("steadygrad_test", "DEF")
LIBRARY.define("drift(Tensor value) -> Tensor")
LIBRARY.impl("drift", lambda value: value * (1.0 + Drifting.drift), "CPU")


def test_a_non_deterministic_operation_is_named() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(Drifting.apply(model(batch[0])), batch[1])

    guard, _ = train(loss, self_check=0.1)
    incident = guard.incidents[0]
    assert "steadygrad_test.drift" in incident.headline
    assert "non-deterministic" in incident.headline
    assert incident.findings[0].code == "SY417"
    assert incident.diagnosis.origin.op == "steadygrad_test.drift.default"
    assert len(guard.incidents) == 1, "once it is known, only what it does not explain is reported"


def test_a_generator_that_is_not_restored_is_named() -> None:
    own = torch.Generator().manual_seed(5)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[0])
        return nn.functional.cross_entropy(logits + 0.1 * torch.randn(logits.shape, generator=own), batch[1])

    guard, _ = train(loss, self_check="10%")
    assert "randn" in guard.incidents[0].headline
    assert "extra_state" in guard.incidents[0].headline


def test_a_fault_that_does_not_come_again_is_the_machine_and_leaves_no_trace() -> None:
    calls: list[int] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        value = loss_fn(model, batch)
        return value * (1.001 if len(calls) == 10 else 1.0)  # step 9, the first time it is computed

    guard, end = train(loss, self_check="10%")
    _, healthy = train(loss_fn)
    assert end == healthy
    (incident,) = guard.incidents
    assert "the machine (cpu, rank 0)" in incident.headline
    assert incident.first_step == 9
    assert incident.diagnosis.cause.code == "DX404"


def test_a_share_that_is_none_is_refused_in_a_sentence() -> None:
    for wrong in ("often", "120%", -0.1):
        model, optimizer = make()
        with pytest.raises(UsageError, match="share of all steps"):
            sg.Guard(model, optimizer, loss_fn, self_check=wrong)


def test_where_a_step_cannot_be_run_again_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    with sg.Guard(model, optimizer, loss_fn, policy="observe", self_check="1%"):
        pass
    assert [r.message for r in caplog.records if "self_check" in r.message] == [
        "self_check: not possible here: the policy only observes"
    ]
    caplog.clear()
    model, optimizer = make()
    with sg.attach(optimizer, model=model, self_check="1%"):
        pass
    assert sum("self_check: not possible here" in r.message for r in caplog.records) == 1
