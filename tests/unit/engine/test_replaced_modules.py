"""A program that replaces parts of its model in the middle of a run is guarded as one that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

Change = Callable[[nn.Sequential, torch.optim.Optimizer], None]


def exchange(optimizer: torch.optim.Optimizer, old: nn.Module, new: nn.Module) -> None:
    """In the list of the group, in place, as programs do; the old moments are deleted."""
    listed = optimizer.param_groups[0]["params"]
    for a, b in zip(old.parameters(), new.parameters(), strict=True):
        listed[[p is a for p in listed].index(True)] = b
        optimizer.state.pop(a, None)


def another_head(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    old, model[3] = model[3], nn.Linear(16, 5)
    exchange(optimizer, old, model[3])


def another_norm(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    old, model[1] = model[1], nn.BatchNorm1d(16)
    exchange(optimizer, old, model[1])


def a_norm_without_parameters(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    model[2] = nn.Sequential(nn.Tanh(), nn.BatchNorm1d(16, affine=False))


def a_module_added(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    model.add_module("4", nn.BatchNorm1d(3))
    optimizer.add_param_group({"params": list(model[4].parameters())})


def a_parameter_replaced(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    old = model[3].weight
    model[3].weight = nn.Parameter(torch.randn_like(old))
    optimizer.param_groups[0]["params"] = [
        model[3].weight if p is old else p for p in optimizer.param_groups[0]["params"]
    ]
    del optimizer.state[old]


def a_wrapper(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    model[1] = nn.Sequential(model[1], nn.Dropout(0.2))


def a_group_replaced(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    model[3] = nn.Linear(16, 5)
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "params": list(model.parameters())}


CHANGES: tuple[Change, ...] = (
    another_head, another_norm, a_norm_without_parameters, a_module_added, a_parameter_replaced, a_wrapper,
    a_group_replaced,
)  # fmt: skip


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trained(change: Change, entry_point: str, bad: set[int]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard = sg.Guard(model, optimizer, loss_fn, diagnose="off") if entry_point == "guard" else None
    attached = sg.attach(optimizer, model=model) if entry_point == "attach" else None
    for step in range(30):
        if step == 10:
            change(model, optimizer)
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)
        if step in bad:
            batch[0][3, 2] = float("nan")
            if entry_point == "left out":
                continue
        if guard is not None:
            guard.step(batch)
        else:
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
    for each in (guard, attached):
        if each is not None:
            each.close()
            assert each.summary()["skipped"] == len(bad)
            assert not each.summary()["guard_faults"]
    moments = [v for p in optimizer.param_groups[0]["params"] for v in optimizer.state[p].values()]
    return [v.clone() for v in (*model.state_dict().values(), *moments)]


@pytest.mark.parametrize("entry_point", ["guard", "attach"])
@pytest.mark.parametrize("bad", [set(), {10}, {10, 17}, {11}], ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_refused_batch_after_a_change_of_the_model_leaves_no_trace(
    change: Change, bad: set[int], entry_point: str
) -> None:
    expected, found = trained(change, "left out", bad), trained(change, entry_point, bad)
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_rollback_after_a_change_of_the_model_does_not_go_back_beyond_it(change: Change) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with sg.Guard(model, optimizer, loss_fn, diagnose="off") as guard:
        for step in range(16):
            if step == 10:
                change(model, optimizer)
                after = [p.detach().clone() for p in model.parameters()]
            if step == 12:
                with torch.no_grad():
                    model[0].weight.fill_(float("nan"))
            generator = torch.Generator().manual_seed(step)
            guard.step((torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)))
    assert guard.summary()["rolled_back"] == 1
    assert guard.summary()["final_state"] == "finite"
    assert [p.shape for p in model.parameters()] == [p.shape for p in after]
