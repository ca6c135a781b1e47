"""A loss function that leaves batches out by returning None is called once for each batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


def batches(count: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(8, 4, generator=generator) for _ in range(count)]


class Gathers:
    """Trains on four batches at a time."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor | None:
        self.calls += 1
        self.kept.append(batch)
        if len(self.kept) < 4:
            return None
        rows = torch.cat(self.kept)
        self.kept.clear()
        return (model(rows) - rows[:, :1]).square().mean()


def trained(guarded: bool, form: str) -> tuple[int, Tensor]:
    torch.manual_seed(0)
    model, gathers = nn.Linear(4, 1), Gathers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def in_a_closure(model: nn.Module, batch: Tensor) -> Tensor | None:
        return gathers(model, batch)

    loss_fn: Any = {"object": gathers, "method": gathers.__call__, "closure": in_a_closure}[form]
    if guarded:
        with sg.Guard(model, optimizer, loss_fn) as guard:
            for batch in batches():
                guard.step(batch)
        assert guard.summary()["guard_faults"] == {}
        return gathers.calls, model.weight.detach()
    for batch in batches():
        if (loss := loss_fn(model, batch)) is not None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return gathers.calls, model.weight.detach()


@pytest.mark.parametrize("form", ["object", "method", "closure"])
def test_batches_that_are_gathered_are_seen_once_and_trained_on(form: str) -> None:
    plain, guarded = trained(False, form), trained(True, form)
    assert guarded[0] == plain[0] == 16
    assert torch.equal(guarded[1], plain[1])


def skips(seen: list[int] | None) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def plainly(model: nn.Module, batch: Tensor) -> Tensor | None:
        loss: Tensor = model(batch).square().mean()
        return loss if loss.isfinite() else None

    def noticed(model: nn.Module, batch: Tensor) -> Tensor | None:
        assert seen is not None
        seen.append(1)
        return plainly(model, batch)

    return model, plainly if seen is None else noticed


@pytest.mark.parametrize("counts", [False, True])
def test_a_bad_batch_that_is_left_out_is_an_incident(counts: bool) -> None:
    seen: list[int] = []
    model, loss_fn = skips(seen if counts else None)
    data = batches(12)
    for place in (4, 7, 9):
        data[place][2, 1] = float("nan")
    with sg.Guard(model, torch.optim.SGD(model.parameters(), 0.01), loss_fn, diagnose="off") as guard:
        for batch in data:
            guard.step(batch)
    # Where calling it again could be noticed, the first one shows only that there are such batches.
    assert guard.summary()["skipped_by_program"] == (2 if counts else 3)
    assert len(seen) == (12 if counts else 0)
    assert not model._forward_hooks
    assert not model[0]._forward_hooks
