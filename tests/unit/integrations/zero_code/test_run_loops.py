"""The shapes of loops that real programs have, each guarded or said to be only watched."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.integrations.zero_code.launch.summary import headline, outcome
from steadygrad.integrations.zero_code.launch.supervise import Ended


def bad() -> Tensor:
    x = torch.randn(4, 3)
    x[1, 1] = math.nan
    return x


def finite(*modules: nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for module in modules for p in module.parameters())


def skipped(watch: Any) -> int:
    return sum(log.ledger.skipped for log in watch.ledger.log)


def train(model: nn.Module, optimizer: Any, data: list[Tensor], after: Callable[[], Any] = lambda: None) -> None:
    for x in data:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        after()


def good(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 3, generator=generator) for _ in range(count)]


# -- schedules


def test_a_schedule_stepped_with_each_update_is_held_for_a_refused_one(watching: Any) -> None:
    watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    train(model, optimizer, [*good(1), bad(), *good(1)], schedule.step)
    assert schedule.last_epoch == 2


def test_a_schedule_stepped_once_an_epoch_goes_on_after_a_refused_last_batch(watching: Any) -> None:
    watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        train(model, optimizer, [*good(3), bad()])
        schedule.step()
    assert schedule.last_epoch == 3


def test_a_plateau_is_held_for_the_loss_of_a_refused_batch_and_not_for_a_metric_of_an_evaluation(watching: Any) -> None:
    watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for x, metric in ((good(1)[0], 1.0), (bad(), math.nan), (good(1)[0], 0.5), (bad(), torch.tensor(0.4))):
        train(model, optimizer, [x], lambda metric=metric: schedule.step(metric))
    assert schedule.last_epoch == 3
    assert schedule.best == pytest.approx(0.4)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_chain_of_schedules_is_held_as_one(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
    rest = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, rest], milestones=[2])
    train(model, optimizer, [*good(2), bad(), *good(2)], schedule.step)
    assert schedule.last_epoch == 4
    assert watch.followers.held == 1


def test_a_schedule_of_the_programs_own_class_is_held_too(watching: Any) -> None:
    watching()

    class Halving(torch.optim.lr_scheduler.LRScheduler):
        calls = 0

        def step(self, epoch: int | None = None) -> None:
            self.calls += 1
            super().step(epoch)

        def get_lr(self) -> list[float]:
            return [base * 0.5**self.last_epoch for base in self.base_lrs]

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = Halving(optimizer)
    made = schedule.calls
    train(model, optimizer, [*good(2), bad(), *good(1)], schedule.step)
    assert schedule.calls - made == 3


# -- several optimizers, containers, closures


def test_a_gan_is_guarded_at_both_optimizers(watching: Any) -> None:
    watch = watching()
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    first = torch.optim.Adam(critic.parameters(), lr=1e-2)
    second = torch.optim.Adam(generator.parameters(), lr=1e-2)
    for x in [*good(2), bad(), *good(2)]:
        first.zero_grad()
        (critic(x).mean() - critic(generator(torch.randn(4, 2)).detach()).mean()).backward()
        first.step()
        second.zero_grad()
        critic(generator(torch.randn(4, 2))).mean().neg().backward()
        second.step()
    assert finite(generator, critic)
    assert skipped(watch) == 1
    assert first.state[critic.weight]["step"] == 4
    assert second.state[generator.weight]["step"] == 5
    assert watch.barrier.faults == {}


class Container(torch.optim.Optimizer):
    """An optimizer of optimizers, as torchtitan has them."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        super().__init__([p for part in parts for group in part.param_groups for p in group["params"]], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def test_the_parts_of_a_container_are_applied_together_or_not_at_all(watching: Any) -> None:
    watch = watching()
    one, two = nn.Linear(3, 3), nn.Linear(3, 1)
    parts: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(one.parameters()), torch.optim.SGD(two.parameters(), lr=0.1),
    ]  # fmt: skip
    train(nn.Sequential(one, two), Container(parts), [*good(2), bad(), *good(1)])
    assert finite(one, two)
    assert parts[0].state[one.weight]["step"] == 3
    assert skipped(watch) == 1
    assert sum(log.ledger.steps for log in watch.ledger.log) == 4  # decided once, at the container


def test_a_step_that_raised_does_not_leave_the_next_one_unguarded(watching: Any) -> None:
    watch = watching()

    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            if self.fails:
                raise OSError("out of luck")
            return super().step(closure)

    model = nn.Linear(3, 1)
    optimizer = Failing(model.parameters(), lr=0.1)
    with pytest.raises(OSError, match="out of luck"):
        train(model, optimizer, good(1))
    optimizer.fails = False
    train(model, optimizer, [bad()])
    assert finite(model)
    assert skipped(watch) == 1


def test_a_closure_is_judged_after_its_backward(watching: Any) -> None:
    watch = watching()
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for x in [*good(2), bad(), *good(1)]:

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert finite(model)
    assert bool(torch.isfinite(model[1].running_mean).all())  # type: ignore[arg-type]
    assert optimizer.state[model[0].weight]["step"] == 3
    assert skipped(watch) == 1


@pytest.mark.parametrize("form", ["closure", "two optimizers"])
def test_the_model_of_a_later_training_is_found_whatever_the_loops_before_it(watching: Any, form: str) -> None:
    watch = watching()
    for _ in range(2):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        halves = [model] if form == "closure" else [model[0], model[2]]
        optimizers = [torch.optim.SGD(half.parameters(), lr=1e-3) for half in halves]
        for x in [*good(30), bad()]:

            def closure(x: Tensor = x, model: nn.Module = model) -> Tensor:
                model.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                return loss

            if form == "closure":
                optimizers[0].step(closure)
            else:
                closure()
                for optimizer in optimizers:
                    optimizer.step()
        assert finite(model)
        assert bool(torch.isfinite(model[1].running_mean).all())  # type: ignore[arg-type]
    assert skipped(watch) == 2 * len(optimizers)


def test_a_bad_step_of_lbfgs_is_undone_as_a_whole(watching: Any) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(x: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    step(good(1)[0])
    before = [p.detach().clone() for p in model.parameters()]
    step(torch.full((4, 3), float("nan")))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert [incident.symptom for incident in watch.ledger.log[0].incidents] == ["nan_loss"]
    assert watch.barrier.faults == {}


def test_an_optimizer_inside_backward_refuses_what_it_can_and_that_is_said(watching: Any) -> None:
    watch = watching()
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x in [*good(1), bad(), *good(1)]:
        model(x).pow(2).mean().backward()
    assert finite(model)
    assert "inside backward" in watch.ledger.notices["in_backward"]
    assert watch.ledger.in_backward_refused == 4
    assert watch.ledger.in_backward == 8


def test_updates_refused_inside_backward_are_not_called_skipped_by_the_program(watching: Any) -> None:
    watch = watching()
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
    for x in [*good(1), bad(), *good(1)]:
        model(x).pow(2).mean().backward()
    for handle in handles:
        handle.remove()
    for x in good(3):
        model(x).pow(2).mean().backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    headlines = [incident.headline for log in watch.ledger.log for incident in log.incidents]
    assert headlines == ["updates inside backward were refused: the loss is nan"]
    note = watch.finish()
    assert (note["in_backward"], note["in_backward_refused"], note["skipped_by_program"]) == (8, 4, 0)
    told = headline(outcome(Ended(code=0, run_dir=Path("nowhere"), notes=[note])))
    assert told.startswith("12 updates, none refused, 12 updates inside backward, 4 refused in 4 trainings.")


# -- no optimizer of torch's, and things that only look like training


def test_updates_by_hand_are_seen_and_cannot_be_refused(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(3, 1)
    for x in [*good(2), bad()]:
        model.zero_grad()
        model(x).pow(2).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
    note = watch.finish()
    assert (note["steps"], note["backwards"], note["first_bad_backward"]) == (0, 3, 3)
    assert note["run_dir"] is None


def test_backward_on_the_meta_device_passes_untouched(watching: Any) -> None:
    watch = watching()
    with torch.device("meta"):
        model = nn.Linear(3, 1)
        loss = model(torch.empty(2, 3)).sum()
    loss.backward()
    assert watch.backwards.count == 0
    assert watch.barrier.faults == {}


def test_a_program_that_recovers_by_itself_is_left_alone(watching: Any) -> None:
    """It throws the bad batch away before its optimizer sees it: nothing to refuse, and no schedule to hold."""
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for x in [*good(2), bad(), *good(2)]:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if bool(torch.isfinite(loss)):
            optimizer.step()
        schedule.step()
    assert schedule.last_epoch == 5
    assert skipped(watch) == 0
    assert finite(model)


def test_a_model_whose_parts_are_called_one_by_one_is_found(watching: Any) -> None:
    """The container itself is never called, as in a LightningModule."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            self.head = nn.Linear(3, 1)

    watch = watching()
    both = Both()
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    for x in [*good(3), bad(), *good(1)]:
        optimizer.zero_grad()
        both.head(both.body(x)).pow(2).mean().backward()
        optimizer.step()
    assert finite(both)
    assert bool(torch.isfinite(both.body[1].running_mean).all())  # type: ignore[arg-type]
    assert both.body[1].num_batches_tracked == 4
    assert skipped(watch) == 1


def test_parameters_added_later_are_guarded_too(watching: Any) -> None:
    watch = watching()
    body, head = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.Adam(body.parameters())
    model = nn.Sequential(body, head)
    train(model, optimizer, good(2))
    optimizer.add_param_group({"params": list(head.parameters())})
    head.weight.register_hook(lambda g: g * math.nan)
    train(model, optimizer, good(1))
    assert finite(model)
    assert skipped(watch) == 1


# -- loss scaling


def test_an_overflow_of_the_loss_scale_is_the_scalers_own_business(watching: Any) -> None:
    """Warm-up overflows are normal: schedule, statistics and scale are what the program alone would have."""

    def loop() -> tuple[list[Tensor], int, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for x in good(4):
            optimizer.zero_grad()
            (scaler.scale(model(100 * x).pow(2).mean()) / 1.0).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        return [t.clone() for t in model.state_dict().values()], schedule.last_epoch, scaler.get_scale()

    alone = loop()
    watch = watching()
    watched = loop()
    assert all(torch.equal(a, b) for a, b in zip(alone[0], watched[0], strict=True))
    assert alone[1:] == watched[1:]
    (log,) = watch.ledger.log
    assert (log.ledger.overflows, len(log.incidents)) == (1, 0)


def test_a_bad_batch_that_a_scaler_hides_is_an_incident_and_leaves_no_statistics(watching: Any) -> None:
    watch = watching()
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x in [*good(2), bad(), *good(1)]:
        optimizer.zero_grad()
        scaler.scale(model(x).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    (log,) = watch.ledger.log
    (incident,) = log.incidents
    assert incident.symptom == "nan_loss"
    assert bool(torch.isfinite(model[1].running_mean).all())  # type: ignore[arg-type]
    assert model[1].num_batches_tracked == 3


# -- others who guard, and the end of patience


def test_a_guard_of_the_programs_own_comes_first(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = sg.Guard(model, optimizer, lambda m, x: m(x).pow(2).mean(), diagnose="off")
    for x in [*good(2), bad()]:
        guard.step(x)
    guard.close()
    assert guard.summary()["skipped"] == 1
    assert watch.ledger.loops == []


def test_budgets_end_in_a_halt_with_the_last_good_weights(watching: Any) -> None:
    watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, good(2))
    before = model.weight.detach().clone()
    with pytest.raises(sg.TrainingHalted, match="The refused updates were not applied"):
        train(model, optimizer, [bad() for _ in range(20)])
    assert torch.equal(model.weight.detach(), before)


def test_a_fault_of_ours_leaves_the_bare_check(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching()

    def broken(*_: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(watch, "loop_of", broken)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    train(model, optimizer, [bad()])
    assert torch.equal(model.weight.detach(), before)
    train(model, optimizer, good(1))
    assert not torch.equal(model.weight.detach(), before)
    assert watch.barrier.faults["guard"] == 2


def test_buffers_of_any_stride_are_compared_without_a_fault(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(4, 1)
    model.register_buffer("seen", torch.zeros(()).expand(1))  # one element, and a stride of 0
    model.register_buffer("turned", torch.zeros(2, 3).t())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert not watch.barrier.faults
