"""An update that goes wrong by itself is looked at before it is believed, and only where something is new to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.engine.recovery.update_check import UpdateCheck
from steadygrad.engine.state.forward_state import ForwardState
from steadygrad.engine.state.training_state import TrainingState, bad_state
from steadygrad.integrations.optimizer import update_numbers


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :4]) - batch[:, 4:]).pow(2).mean()


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, generator=generator) for _ in range(count)]


def guarded(optimizer_type: type[optim.Optimizer], **options: Any) -> tuple[nn.Module, optim.Optimizer, sg.Guard]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = optimizer_type(model.parameters(), **options)
    return model, optimizer, sg.Guard(model, optimizer, loss_fn, diagnose="off")


@pytest.mark.parametrize("rate", [math.inf, math.nan])
def test_an_update_with_a_rate_that_is_no_number_is_never_applied(rate: float) -> None:
    model, optimizer, guard = guarded(optim.SGD, lr=0.01)
    data = batches(6)
    with guard:
        for batch in data[:3]:
            guard.step(batch)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.param_groups[0]["lr"] = rate
        outcome = guard.step(data[3])
        assert not outcome.applied
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        optimizer.param_groups[0]["lr"] = 0.01
        assert guard.step(data[4]).applied
    assert [incident.first_step for incident in guard.incidents] == [3]


def test_a_bad_moment_that_was_written_from_outside_never_reaches_a_weight() -> None:
    model, optimizer, guard = guarded(optim.SGD, lr=0.01, momentum=0.9)
    data = batches(6)
    with guard:
        for batch in data[:3]:
            guard.step(batch)
        optimizer.state[next(model.parameters())]["momentum_buffer"][0, 1] = math.nan
        guard.step(data[3])
        assert all(bool(p.isfinite().all()) for p in model.parameters())
        assert guard.step(data[4]).applied
    assert [incident.first_step for incident in guard.incidents] == [3]
    assert guard.incidents[0].symptom == "nan_state"


def test_moments_of_a_loaded_state_are_looked_at_once() -> None:
    _, optimizer, guard = guarded(optim.Adam, lr=0.01)
    data = batches(6)
    with guard:
        for batch in data[:2]:
            guard.step(batch)
        optimizer.load_state_dict(optimizer.state_dict())
        assert all(guard.step(batch).applied for batch in data[2:])
    assert guard.incidents == []


def checked(model: nn.Module, optimizer: optim.Optimizer) -> UpdateCheck:
    return UpdateCheck([optimizer], TrainingState(parameters=dict(model.named_parameters()), optimizers=[optimizer],
                                                  forward=ForwardState([model])))  # fmt: skip


def updated(model: nn.Module, optimizer: optim.Optimizer, check: UpdateCheck, batch: Tensor) -> bool:
    """Make an update; whether everything was copied first."""
    loss_fn(model, batch).backward()
    copied = check.before((0, 1), may_copy=True)
    optimizer.step()
    assert check.after((0, 1), copied) is None
    optimizer.zero_grad()
    return copied is not None


def test_nothing_is_copied_while_all_goes_as_before_and_everything_is_when_it_does_not() -> None:
    model = nn.Linear(4, 1)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    check = checked(model, optimizer)
    assert [updated(model, optimizer, check, batch) for batch in batches(4)] == [True, False, False, False]
    assert check.before((0, 1, 2), may_copy=True) is not None
    optimizer.state[model.weight]["exp_avg"].add_(1.0)
    assert check.before((0, 1), may_copy=True) is not None
    check.after((0, 1), None)
    optimizer.state[model.weight]["exp_avg"] = optimizer.state[model.weight]["exp_avg"].clone()
    assert check.before((0, 1), may_copy=True) is not None
    check.after((0, 1), None)
    optimizer.param_groups[0]["lr"] *= 10
    assert check.before((0, 1), may_copy=True) is not None
    check.after((0, 1), None)
    assert not check.wants_host
    optimizer.param_groups[0]["weight_decay"] = math.inf
    assert check.wants_host


def test_an_optimizer_that_replaces_its_state_in_each_update_is_not_copied_for_that() -> None:
    model = nn.Linear(4, 1)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    check = checked(model, optimizer)

    def replace_moments(*_: Any) -> None:
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].clone()

    optimizer.register_step_post_hook(replace_moments)
    copied = [updated(model, optimizer, check, batch) for batch in batches(8)]
    assert sum(copied) <= 2
    assert not any(copied[3:])
    replace_moments()
    assert updated(model, optimizer, check, batches(1)[0])


def test_weights_that_turn_bad_unseen_are_found_within_a_few_updates() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(24)], nn.Linear(4, 1))
    unused = nn.Parameter(torch.zeros(3))
    model.register_parameter("unused", unused)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    with sg.Guard(model, optimizer, loss_fn, diagnose="off") as guard:
        for number, batch in enumerate(batches(40)):
            if number == 5:
                with torch.no_grad():
                    unused[1] = math.nan  # no loss and no gradient ever shows it
            guard.step(batch)
        assert bool(unused.isfinite().all())
    bad = [incident for incident in guard.incidents if incident.symptom != "silent"]  # so deep, it hardly learns
    assert bad[0].symptom == "nan_param"
    assert bad[0].first_step <= 5 + 16


def test_the_state_that_a_closed_guard_leaves_is_checked() -> None:
    model, _, guard = guarded(optim.SGD, lr=0.01)
    guard.step(batches(1)[0])
    assert guard.summary()["final_state"] == "not checked"
    guard.close()
    assert guard.summary()["final_state"] == "finite"
    model, _, guard = guarded(optim.SGD, lr=0.01)
    guard.step(batches(1)[0])
    with torch.no_grad():
        model.bias.fill_(math.nan)
    guard.close()
    assert guard.summary()["final_state"] == "non-finite: parameter bias"


@pytest.mark.parametrize("entry", ["guard", "attach"])
def test_buffers_that_turn_bad_unseen_by_any_step_are_an_incident_at_the_end(entry: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    guard: Any = sg.Guard(model, optimizer, loss_fn) if entry == "guard" else sg.attach(optimizer, model=model)
    for batch in batches(4):
        if entry == "guard":
            guard.step(batch)
            continue
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    model[1].running_var[2] = math.inf  # type: ignore[union-attr,index,operator]
    guard.close()
    assert [found.code for found in guard.incidents[0].findings] == ["SY107"]
    assert guard.summary()["skipped"] == 0


class Forbidding(nn.Module):
    """Some transitions are forbidden by minus infinity, in a parameter that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = nn.Parameter(torch.tensor([[0.0, -math.inf], [0.0, 0.0]]))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return -torch.log_softmax(self.layer(x)[:, :, None] + self.allowed, -1)[:, :, 0].mean()


def train_forbidding(entry: str, *, bad: bool, device: str = "cpu") -> tuple[Forbidding, Any]:
    torch.manual_seed(0)
    model = Forbidding().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=entry in ("late", "device"))
    batches = [torch.randn(4, 3).to(device) for _ in range(8)]
    if bad:
        batches.insert(5, torch.full((4, 3), math.nan, device=device))
    if entry in ("guard", "late"):
        settle = "late" if entry == "late" else "now"
        guard: Any = sg.Guard(model, optimizer, lambda m, b: m(b), diagnose="off", settle=settle)
    else:
        guard = sg.attach(optimizer, model=model)
    with guard:
        for batch in batches:
            if entry in ("guard", "late"):
                guard.step(batch)
                continue
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, guard


@pytest.mark.parametrize("entry", ["guard", "late", "attach", "device"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_infinities_that_a_program_put_into_a_parameter_do_not_halt_it_at_a_bad_batch(
    entry: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "late" and "device": the update is made under a flag, as on a GPU."""
    if entry == "device" and device == "cpu":
        monkeypatch.setattr(update_numbers, "ON_DEVICE", ("cpu",))
    expected, _ = train_forbidding(entry, bad=False, device=device)
    model, guard = train_forbidding(entry, bad=True, device=device)
    summary = guard.summary()
    assert (summary["applied"], summary["skipped"], summary["halted"]) == (8, 1, False)
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_another_bad_value_in_such_a_parameter_is_seen(value: float) -> None:
    model, guard = train_forbidding("guard", bad=False)
    state = TrainingState(
        parameters=dict(model.named_parameters()), optimizers=guard.optimizers, forward=ForwardState([model])
    )
    assert bad_state(state)["bad_parameters"] == ()
    with torch.no_grad():
        model.allowed[1, 1] = value
    assert bad_state(state)["bad_parameters"] == ("allowed",)


def train_half(*, attached: bool, bad: int | None = None, left_out: int | None = None) -> list[Tensor]:
    """float16 weights whose second moment underflows: a batch with a zero gradient divides by an eps that is zero."""
    torch.manual_seed(1)
    model = nn.Linear(8, 1).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-15, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(3)
    data = [torch.randn(32, 9, generator=generator) for _ in range(12)]
    for number, batch in enumerate(data):
        batch[:, 0] = 0.0 if number == bad else 0.002 * (0.5 + batch[:, 0].abs())
    guard = sg.attach(optimizer, model=model) if attached else None
    for number, batch in enumerate(data):
        if number != left_out:
            half = batch.half()
            (model(half[:, :8]).float() - half[:, 8:].float()).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if guard is not None:
        guard.close()
        assert guard.summary()["skipped"] == (bad is not None)
    return [*model.parameters(), *(value for p in model.parameters() for value in optimizer.state[p].values())]


def test_an_update_of_half_precision_that_makes_infinities_is_undone_where_the_device_could_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not all(tensor.isfinite().all() for tensor in train_half(attached=False, bad=6))
    monkeypatch.setattr(update_numbers, "ON_DEVICE", ("cpu",))
    assert all(map(torch.equal, train_half(attached=False), train_half(attached=True)))
    assert all(map(torch.equal, train_half(attached=False, left_out=6), train_half(attached=True, bad=6)))


class TrustRatio(optim.SGD):
    """Scales each update to the size of its weight, and divides by zero where a gradient is zero."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.01 * parameter.grad * parameter.norm() / parameter.grad.norm())


def test_a_halt_after_updates_that_were_undone_does_not_call_the_weights_bad() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = TrustRatio(model.parameters(), lr=0.1)
    sg.attach(optimizer, model=model)
    with pytest.raises(sg.TrainingHalted, match="The refused updates were not applied"):  # noqa: PT012
        for number, batch in enumerate(batches(24)):
            loss = loss_fn(model, batch)
            (loss if number < 3 else 0.0 * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
