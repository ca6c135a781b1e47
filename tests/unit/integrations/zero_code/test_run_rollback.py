"""Weights that turn bad in a loop that is not ours: back to the last good state, with the updates since made again."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.recovery.reruns.user_state import TakenValues
from steadygrad.records import Action

STEPS, AT = 9, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[:, 0]  # type: ignore[no-any-return]


class Loop:
    """A model, its optimizer, its schedule and an average of its weights, trained on batches in order."""

    poke_every_time = False

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2)  # type: ignore[call-arg]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        torch.manual_seed(7)

    def train(self, batches: Sequence[Tensor], *, poke_at: int | None = None, write: bool = False) -> None:
        for number, batch in enumerate(batches):
            if number == poke_at or self.poke_every_time:
                self.poke()
            self.optimizer.zero_grad()
            out = self.model(batch)
            loss = (out - 1.0).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.schedule.step()
            self.average.update_parameters(self.model)
            if write:
                batch.zero_()

    def poke(self) -> None:
        with torch.no_grad():
            self.model.body[0].weight[0, 0] = math.nan

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        for index, values in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        found["random numbers"] = torch.get_rng_state()
        found["rate"] = torch.tensor(self.optimizer.param_groups[0]["lr"])
        found["schedule"] = torch.tensor(self.schedule.last_epoch)
        return {name: value.clone() for name, value in found.items()}


def batches(*, without: Sequence[int] = ()) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(4, 3, generator=generator) for _ in range(STEPS)]
    return [batch for number, batch in enumerate(made) if number not in without]


def differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    return [name for name in one.keys() | two.keys() if not torch.equal(one[name], two[name])]


def plain(optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, *, without: Sequence[int]) -> dict[str, Any]:
    loop = Loop(optimizer)
    loop.train(batches(without=without))
    return loop.state()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_the_updates_since_the_last_good_state_are_made_again_to_the_bit(watching: Any, optimizer: Any) -> None:
    wanted = plain(optimizer, without=[AT])
    watch = watching(policy="balanced")
    loop = Loop(optimizer)
    loop.train(batches(), poke_at=AT)
    assert differing(loop.state(), wanted) == []
    (log,) = watch.ledger.log
    (incident,) = log.incidents
    assert incident.symptom == "nan_param"
    assert Action.ROLLBACK in incident.decision.actions
    assert "the state before step 1 was restored and the 5 updates since were made again" in incident.decision.reason
    assert watch.barrier.faults == {}


def test_a_model_trained_before_has_no_part_in_it(watching: Any) -> None:
    data = batches() * 5
    reference = Loop()
    reference.train([batch for number, batch in enumerate(data) if number != 40])
    watch = watching(policy="balanced")
    first = Loop()
    first.train(batches())
    before = first.state()
    second = Loop()
    second.train(data, poke_at=40)
    assert differing(second.state(), reference.state() | {"random numbers": torch.get_rng_state()}) == []
    assert "updates since were made again" in watch.ledger.log[1].incidents[0].decision.reason
    assert differing(first.state(), before | {"random numbers": torch.get_rng_state()}) == []


def test_a_batch_that_was_refused_in_between_is_not_made_again(watching: Any) -> None:
    wanted = plain(without=[3, AT])
    watching(policy="balanced")
    data = batches()
    data[3][0, 0] = math.nan
    loop = Loop()
    loop.train(data, poke_at=AT)
    assert differing(loop.state(), wanted) == []


def test_rates_that_the_loop_sets_by_hand_are_as_it_set_them(watching: Any) -> None:
    def trained(data: Sequence[Tensor], poke_at: int | None) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(7)
        landed = 0
        for number, batch in enumerate(data):
            if number == poke_at:
                with torch.no_grad():
                    model.body[0].bias[0] = math.inf
            else:
                optimizer.param_groups[0]["lr"] = 1e-2 / (1 + landed)
                landed += 1
            optimizer.zero_grad()
            out = model(batch)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
        return [*model.state_dict().values(), torch.tensor(optimizer.param_groups[0]["lr"])]

    wanted = trained(batches(without=[AT]), None)
    watch = watching(policy="balanced")
    found = trained(batches(), AT)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert "were made again" in watch.ledger.log[0].incidents[0].decision.reason


def test_where_they_cannot_be_made_again_the_run_goes_on_from_the_good_state_and_says_so(watching: Any) -> None:
    """The loop writes into its batches, so they are not what they were. It is a run that never saw steps 1 to AT."""
    wanted = plain(without=range(1, AT + 1))
    watch = watching(policy="balanced")
    loop = Loop()
    loop.train(batches(), poke_at=AT, write=True)
    assert differing(loop.state(), wanted) == []
    (incident,) = watch.ledger.log[0].incidents
    assert incident.decision.reason.endswith(
        "the state before step 1 was restored; the 5 updates since are lost: their batches were written to since"
    )


def test_lines_that_come_out_differently_are_noticed_and_the_good_state_stays(watching: Any) -> None:
    """What the loss depends on lies outside of the loop's lines and has moved on."""
    watch = watching(policy="balanced")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    seen: list[float] = []

    def loss_of(out: Tensor) -> Tensor:
        seen.append(1.0)
        return (out - sum(seen)).square().mean()

    after_one: dict[str, Tensor] = {}
    for number, batch in enumerate(batches()[:4]):
        if number == 3:
            with torch.no_grad():
                model.body[0].weight[0, 0] = math.inf
        optimizer.zero_grad()
        out = model(batch)
        loss = loss_of(out)
        loss.backward()
        optimizer.step()
        if number == 0:
            after_one = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(value, after_one[name]) for name, value in model.state_dict().items())
    (incident,) = watch.ledger.log[0].incidents
    assert "the 2 updates since are lost: made again they do not come out the same" in incident.decision.reason


def test_bad_weights_before_the_first_good_state_still_end_the_run(watching: Any) -> None:
    watching(policy="balanced")
    loop = Loop()
    with pytest.raises(sg.TrainingHalted, match="were bad before this step"):
        loop.train(batches(), poke_at=0)


def test_weights_that_keep_turning_bad_end_the_run(watching: Any) -> None:
    watching(policy="balanced")
    loop = Loop()
    loop.train(batches()[:2])
    loop.poke_every_time = True
    with pytest.raises(sg.TrainingHalted):
        loop.train(batches() * 20)


class RunningScale(nn.Module):
    """Divides by a running variance, which it moves after it was used: a batch of one row makes it NaN, and the loss of
    that batch is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / self.var.sqrt()
        with torch.no_grad():
            self.var.lerp_(x.var(0) if len(x) > 1 else x[0] * math.nan, 0.1)
        return self.out(scaled)[:, 0]  # type: ignore[no-any-return]


def test_updates_that_leave_a_buffer_bad_are_left_out_however_often_they_come(watching: Any) -> None:
    def trained(data: Sequence[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        model = RunningScale()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        for x in data:
            loss = (model(x) - x[:, 0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return [*model.state_dict().values(), torch.tensor(optimizer.param_groups[0]["lr"])]

    random = torch.Generator().manual_seed(1)
    bad = range(5, 60, 13)
    data = [torch.randn(1 if number in bad else 6, 3, generator=random) for number in range(62)]
    wanted = trained([x for number, x in enumerate(data) if number not in bad and number - 1 not in bad])
    watch = watching()
    found = trained(data)
    assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    (log,) = watch.ledger.log
    assert log.ledger.rollbacks_total == len(bad) > watch.policy.max_rollbacks
    assert "step 5, which left state non-finite, was left out" in log.incidents[0].decision.reason


def test_watching_only_changes_nothing(watching: Any) -> None:
    watch = watching(policy="observe")
    loop = Loop()
    loop.train(batches(), poke_at=AT)
    assert bool(torch.isnan(loop.model.body[0].weight).any())
    assert watch.past.steps == []


def test_a_healthy_loop_is_not_changed_by_a_bit(watching: Any) -> None:
    wanted = plain(without=[])
    watching(policy="balanced")
    loop = Loop()
    loop.train(batches())
    assert differing(loop.state(), wanted) == []


def test_values_of_a_pass_keep_batches_and_no_model_alive() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x = torch.randn(2, 3)

    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

    def taken() -> tuple[TakenValues, list[weakref.ref[Any]]]:
        model, batch = nn.Linear(3, 1), Batch()
        optimizer, trainer = torch.optim.SGD(model.parameters(), 0.1), Trainer(model)
        given = {"model": model, "optimizer": optimizer, "trainer": trainer, "batch": batch, "rows": [torch.ones(2)]}
        found = TakenValues(given)
        assert dict(found) == given
        return found, [weakref.ref(each) for each in (model, optimizer, trainer)]

    values, lasting = taken()
    gc.collect()
    assert [each() for each in lasting] == [None, None, None]
    assert values["batch"].x.shape == (2, 3)
    assert len(values["rows"]) == 1
    assert values["model"] is None


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_training_that_the_program_drops_is_freed_and_its_weights_are_looked_at(
    watching: Any, scheduled: bool
) -> None:
    watch = watching()

    def trained(rate: float) -> list[weakref.ref[Any]]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3) if scheduled else None
        for _ in range(8):
            x = torch.randn(5, 3)
            loss = (model(x) - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
        return [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]

    for _ in range(2):
        references = trained(1e-3)
        gc.collect()
        assert [each() for each in references] == [None, None, None]
    assert watch.finish()["final_state"] == "finite"
    assert watch.barrier.faults == {}
