"""Where a divergence is shown, smaller learning rates are tried on the same batches, and the best is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.journal import read_events

Batch = tuple[Tensor, Tensor]
OFF = sg.Policy.named("balanced").but(trial_rates=())


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def network(*, normed: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.05), nn.Linear(32, 1)]
    return nn.Sequential(*layers[:1], nn.BatchNorm1d(32), *layers[1:]) if normed else nn.Sequential(*layers)


def batches(spoiled: range = range(0)) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(1)
    rule, step = torch.randn(8, 1, generator=generator), 0
    while True:
        x = torch.randn(16, 8, generator=generator)
        y = torch.tanh(x @ rule / 2) + 0.3 * torch.randn(16, 1, generator=generator)
        yield x, 1e4 * y + 3e3 if step in spoiled else y
        step += 1


def final(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return sum(float(squared(model, batch)) for batch in islice(batches(), 500, 540)) / 40


def train(
    optimizer: Callable[..., torch.optim.Optimizer], lr: float, steps: int = 300, *, policy: Any = "balanced",
    spoiled: range = range(0), normed: bool = False, **options: Any,
) -> tuple[float, sg.Guard]:  # fmt: skip
    model = network(normed=normed)
    guard = sg.Guard(model, optimizer(model.parameters(), lr=lr), squared, policy=policy, diagnose="off", **options)
    with guard:
        for batch in islice(batches(spoiled), steps):
            guard.step(batch)
    return final(model), guard


TOO_HIGH = {"sgd": (torch.optim.SGD, 0.05, 100.0), "adam": (torch.optim.Adam, 3e-3, 300.0),
            "rmsprop": (torch.optim.RMSprop, 1e-3, 1000.0)}  # fmt: skip


@pytest.mark.parametrize("name", ["sgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "rmsprop"))])
def test_a_rate_far_too_high_ends_near_a_rate_that_works(name: str) -> None:
    optimizer, rate, times = TOO_HIGH[name]
    healthy, _ = train(optimizer, rate)
    without, _ = train(optimizer, rate * times, policy="observe")
    saved, guard = train(optimizer, rate * times)
    assert not without <= 1.3 * healthy
    assert saved <= 1.1 * healthy
    assert guard.summary()["rolled_back"] >= 1
    assert guard.summary()["lr_factor"] < 0.3
    assert "chosen by a trial" in guard.incidents[-1].decision.reason  # type: ignore[union-attr]


def test_no_batch_that_was_applied_is_lost_by_a_trial() -> None:
    _, guard = train(torch.optim.Adam, 0.9, 100)
    assert guard.summary()["rolled_back"] == 1
    assert guard.step_number == 100
    applied = [record.step for record in guard._log.recent if record.applied]
    assert applied[-1] == 99


def test_a_bad_shard_is_left_out_and_the_rate_stays() -> None:
    healthy, _ = train(torch.optim.Adam, 3e-3)
    saved, guard = train(torch.optim.Adam, 3e-3, spoiled=range(130, 146))
    assert saved <= 1.1 * healthy
    assert guard.summary()["lr_factor"] == 1.0
    assert "16 batches left out" in guard.incidents[-1].decision.reason  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_rate_is_raised_again_once_a_trial_shows_that_more_holds(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with sg.Guard(model, optimizer, squared, diagnose="off", run_dir=tmp_path / "run") as guard:
        for step, batch in enumerate(islice(batches(), 500)):
            optimizer.param_groups[0]["lr"] = 1.0 if step < 40 else 3e-3  # a mistake that someone corrects
            guard.step(batch)
    assert guard.summary()["rolled_back"] == 1
    raised = [event.data for event in read_events(tmp_path / "run") if event.kind == "rates_tried"]
    assert raised
    assert raised[0]["after"] >= raised[0]["before"]
    assert guard.summary()["lr_factor"] > raised[0]["before"]


SLOW: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "a rate of almost nothing": lambda model: torch.optim.SGD(model.parameters(), lr=1e-7),
    "a rate that works": lambda model: torch.optim.Adam(model.parameters(), lr=3e-3),
    "a rate three times too high": lambda model: torch.optim.Adam(model.parameters(), lr=3e-2),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_training_that_does_not_diverge_is_that_of_a_plain_loop(name: str) -> None:
    guarded, plain = network(normed=True), network(normed=True)
    torch.manual_seed(3)
    with sg.Guard(guarded, SLOW[name](guarded), squared, diagnose="off") as guard:
        for batch in islice(batches(), 220):
            guard.step(batch)
    optimizer = SLOW[name](plain)
    torch.manual_seed(3)
    for batch in islice(batches(), 220):
        squared(plain, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert guard.incidents == []
    for name, mine in guarded.state_dict().items():
        assert torch.equal(mine, plain.state_dict()[name])


def everything(guard: sg.Guard) -> list[Tensor]:
    state = guard._loop.parts.state.live()
    moments = [v for each in guard.optimizers for s in each.state.values() for v in s.values() if isinstance(v, Tensor)]
    kept = [*state["parameters"].values(), *state["buffers"].values(), *moments, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in kept]


def run_a_trial(guard: sg.Guard, factors: tuple[float, ...] = (0.3, 0.1, 0.03)) -> Any:
    recovery = guard._loop.recovery
    buffer, ledger = recovery._batch_buffer, guard._log.ledger
    return recovery.rate_trial.run(recovery._ring.good(), buffer.unchanged(), buffer.losses, 1.0, factors, ledger)


def test_a_trial_leaves_everything_as_it_was_and_calls_no_hook_of_others() -> None:
    model = network(normed=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    calls: list[int] = []
    hook = optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with sg.Guard(model, optimizer, squared, scheduler=schedule, diagnose="off") as guard:
        for batch in islice(batches(), 40):
            guard.step(batch)
        calls.clear()
        before, rate = everything(guard), schedule.get_last_lr()
        trial = run_a_trial(guard)
        assert trial is not None
        assert all(torch.equal(a, b) for a, b in zip(before, everything(guard), strict=True))
        assert (schedule.get_last_lr(), schedule.last_epoch) == (rate, 40)
        assert calls == []
        guard.step(next(batches()))
        assert calls == [1]
    hook.remove()


def test_the_losses_of_a_trial_are_those_of_a_training_with_that_rate() -> None:
    model, other = network(), network()
    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-2), squared, diagnose="off") as guard:
        torch.manual_seed(5)
        for batch in islice(batches(), 30):
            guard.step(batch)
        trial = run_a_trial(guard, (0.1,))
    optimizer, losses = torch.optim.Adam(other.parameters(), lr=1e-3), []
    torch.manual_seed(5)
    for batch in islice(batches(), 30):
        loss = squared(other, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert trial.best.losses == pytest.approx(losses, rel=1e-6)
    assert trial.losses() == {"rate x0.1": pytest.approx(sum(losses[-10:]) / 10, rel=1e-6)}


def test_nothing_is_tried_with_a_loss_function_that_has_changed_since() -> None:
    model, scale = network(), [1.0]

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return scale[0] * squared(model, batch)

    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-2), scaled, diagnose="off") as guard:
        for batch in islice(batches(), 30):
            guard.step(batch)
        assert run_a_trial(guard) is not None
        scale[0] = 1.1
        assert run_a_trial(guard) is None


def test_a_loss_function_that_fails_when_run_again_stops_nothing() -> None:
    model, seen = network(), list[int]()

    def once(model: nn.Module, batch: Batch) -> Tensor:
        if id(batch[0]) in seen:
            raise RuntimeError("this batch was already used")
        seen.append(id(batch[0]))
        return squared(model, batch)

    kept = list(islice(batches(), 100))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.9)
    with sg.Guard(model, optimizer, once, diagnose="off") as guard:
        for batch in kept:
            guard.step(batch)
    assert guard.summary()["applied"] == 100
    assert guard.summary()["rolled_back"] == 0


def test_without_rates_to_try_a_rollback_halves_the_rate() -> None:
    _, guard = train(torch.optim.SGD, 5.0, 30, policy=OFF.but(skip_streak_halt=50))
    assert guard.incidents[-1].decision is not None
    reasons = [each.decision.reason for each in guard.incidents if each.decision is not None]
    assert not any("trial" in reason for reason in reasons)
    assert guard.summary()["lr_factor"] in (0.5, 0.25, 0.125, 1.0)


@pytest.mark.parametrize("rates", [(1.0,), (0.1, 0.3), (0.0,), (math.nan,)])
def test_rates_that_do_not_fall_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(sg.UsageError, match="trial_rates"):
        sg.Policy.named("balanced").but(trial_rates=rates)


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_follows_a_trial_is_the_training_with_that_rate_from_the_start(accumulate: int) -> None:
    def model_after(lr: float) -> tuple[nn.Module, sg.Guard]:
        model = network(normed=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        torch.manual_seed(7)
        with sg.Guard(model, optimizer, squared, accumulate=accumulate, diagnose="off") as guard:
            for batch in islice(batches(), 60 * accumulate):
                guard.step(batch)
        return model, guard

    saved, guard = model_after(0.9)
    assert guard.summary()["rolled_back"] == 1
    chosen, untouched = model_after(0.9 * guard.summary()["lr_factor"])
    assert untouched.summary()["rolled_back"] == 0
    for name, mine in saved.state_dict().items():
        assert torch.equal(mine, chosen.state_dict()[name]), name


def test_what_the_program_prints_and_counts_is_neither_heard_nor_kept_during_a_trial(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Counting(nn.Sequential):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            print("forward", self.calls)
            out: Tensor = super().forward(x)
            return out

    model = Counting(*network())
    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-2), squared, diagnose="off") as guard:
        for batch in islice(batches(), 30):
            guard.step(batch)
        capsys.readouterr()
        assert run_a_trial(guard) is not None
        assert capsys.readouterr().out == ""
        assert model.calls == 30


@pytest.mark.slow
def test_after_trials_in_vain_it_is_looked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    from steadygrad.engine.recovery.divergence.rate_trial import RateTrial

    tried: list[int] = []
    monkeypatch.setattr(RateTrial, "run", lambda self, *_, **__: tried.append(guard.step_number))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    quiet = sg.Policy.named("balanced").but(divergence_min_steps=10**9, runaway_ratio=1e30)
    with sg.Guard(model, optimizer, squared, policy=quiet, diagnose="off") as guard:
        for step, batch in enumerate(islice(batches(), 3000)):
            optimizer.param_groups[0]["lr"] = 3e-3 if step < 150 else 0.3  # as bad as at the start, and no better ever
            guard.step(batch)
    assert 3 <= len(tried) <= 6
    pauses = [b - a for a, b in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert guard.summary()["rolled_back"] == 0


def test_the_incident_names_the_cause_and_the_rate_that_held_first() -> None:
    _, guard = train(torch.optim.Adam, 0.9, 60)
    diagnosis = guard.incidents[-1].diagnosis
    assert diagnosis is not None
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "lr_divergence"
    assert diagnosis.remedies[0].remedy.change == f"learning rate times {guard.summary()['lr_factor']:.3g}"
    _, guard = train(torch.optim.Adam, 3e-3, spoiled=range(130, 146))
    diagnosis = next(each.diagnosis for each in guard.incidents if each.diagnosis is not None)
    assert diagnosis.cause is not None
    assert diagnosis.cause.slug == "bad_input"
    assert diagnosis.remedies[0].remedy.change == "16 batches left out"


CALLS = 0
DRAWS = torch.Generator()


def test_what_a_loss_function_counts_collects_draws_and_moves_elsewhere_is_as_before_a_trial() -> None:
    """A step count in a closure or a global, a list, an object, a generator, a teacher that follows, a bank of rows."""
    global CALLS
    CALLS, model = 0, network()
    teacher, bank, seen, count = network(), torch.zeros(4, 8), list[float](), 0
    DRAWS.manual_seed(3)

    class Meter:
        total = 0.0

    meter = Meter()

    def busy(model: nn.Module, batch: Batch) -> Tensor:
        global CALLS
        nonlocal count
        CALLS, count = CALLS + 1, count + 1
        torch.randn(2, generator=DRAWS)
        loss = squared(model, batch)
        seen.append(float(loss.detach()))
        meter.total += seen[-1]
        with torch.no_grad():
            bank[count % 4] = batch[0][0]
            for mine, its in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.01)
        return loss

    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-2), busy, diagnose="off") as guard:
        for batch in islice(batches(), 30):
            guard.step(batch)
        before = [bank.clone(), DRAWS.get_state(), *(p.detach().clone() for p in teacher.parameters())]
        total, length = meter.total, len(seen)
        assert run_a_trial(guard) is not None
        assert (CALLS, count, len(seen), meter.total) == (30, 30, length, total)
        after = [bank, DRAWS.get_state(), *teacher.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_nothing_is_tried_with_a_loss_function_that_walks_through_an_iterator() -> None:
    model = network()
    noise = iter([0.0] * 1000)

    def walks(model: nn.Module, batch: Batch) -> Tensor:
        return squared(model, batch) + next(noise)

    with sg.Guard(model, torch.optim.Adam(model.parameters(), lr=1e-2), walks, diagnose="off") as guard:
        for batch in islice(batches(), 30):
            guard.step(batch)
        assert run_a_trial(guard) is None
        assert len(list(noise)) == 970
