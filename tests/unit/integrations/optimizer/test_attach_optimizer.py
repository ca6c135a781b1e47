"""Door 2, the optimizer form: the loop stays as it is, and no bad update lands."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, Setup, batches, differing, run_plain, setup, state_of
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.integrations.optimizer.stated_limits import limits
from steadygrad.records import Finding, Severity


def poisoned(batch: Tensor) -> Tensor:
    bad = batch.clone()
    bad[1, 2] = math.nan
    return bad


def run_attached(data: list[Tensor], *, accumulate: int = 1, closure: bool = False, make: Any = None) -> Setup:
    it = setup(make)
    guard = sg.attach(it.optimizer, model=it.model, scheduler=it.scheduler, policy=SKIP_ONLY)
    for index, batch in enumerate(data):

        def forward_backward(batch: Tensor = batch) -> Tensor:
            it.optimizer.zero_grad()
            loss = it.loss_fn(it.model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(it.model.parameters(), 1.0)
            return loss

        before = guard.summary()["applied"]
        if closure:
            it.optimizer.step(forward_backward)
        else:
            loss = it.loss_fn(it.model, batch)
            (loss / accumulate if accumulate > 1 else loss).backward()
            if (index + 1) % accumulate:
                continue
            torch.nn.utils.clip_grad_norm_(it.model.parameters(), 1.0)
            it.optimizer.step()
        it.scheduler.step()
        if guard.summary()["applied"] > before:
            it.ema.update_parameters(it.model)
        it.optimizer.zero_grad()
    guard.close()
    assert guard.summary()["guard_faults"] == {}
    it.guard = guard  # type: ignore[attr-defined]
    return it


OPTIMIZERS = {
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_healthy_attached_run_is_bit_identical_to_the_plain_loop(name: str) -> None:
    data = batches(16)
    plain = run_plain(data, make_optimizer=OPTIMIZERS[name])
    assert differing(state_of(plain), state_of(run_attached(data, make=OPTIMIZERS[name]))) == []


def test_what_was_posted_before_the_guard_was_made_refuses_none_of_its_updates() -> None:
    """A generation of another model had bad logits; that says nothing about this training."""
    found = Finding(
        code="SY501", slug="bad_logits", severity=Severity.FATAL, step=0, detail="bad logits of another model"
    )
    sg.numerics.board().post(found)
    data = batches(8)
    assert differing(state_of(run_plain(data)), state_of(run_attached(data))) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("where", [0, 9])
def test_a_bad_batch_leaves_no_trace(name: str, where: int) -> None:
    data = batches(16)
    bad = [*data[:where], poisoned(data[3]), *data[where:]]
    it = run_attached(bad, make=OPTIMIZERS[name])
    assert differing(state_of(run_plain(data, make_optimizer=OPTIMIZERS[name])), state_of(it)) == []
    assert it.guard.summary()["skipped"] == 1  # type: ignore[attr-defined]


def test_a_bad_micro_batch_drops_its_window_exactly() -> None:
    data = batches(16)
    bad = [*data[:4], data[4], poisoned(data[5]), *data[4:]]
    it = run_attached(bad, accumulate=2)
    assert differing(state_of(run_plain(data, accumulate=2)), state_of(it)) == []


def test_a_closure_is_judged_after_its_backward() -> None:
    data = batches(12)
    bad = [*data[:5], poisoned(data[0]), *data[5:]]
    it = run_attached(bad, closure=True)
    assert differing(state_of(run_plain(data)), state_of(it)) == []


def test_a_step_that_a_scaler_drops_is_counted_and_the_run_is_that_of_the_plain_loop() -> None:
    def loop(data: list[Tensor], attach: bool, overflow_at: int | None) -> tuple[Setup, Any, Any]:
        it = setup(lambda p: torch.optim.AdamW(p, lr=1e-2))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        guard = sg.attach(it.optimizer, model=it.model, scaler=scaler, scheduler=it.scheduler) if attach else None
        for index, batch in enumerate(data):
            loss = it.loss_fn(it.model, batch)
            scaled = scaler.scale(loss)
            if index == overflow_at:
                scaled = scaled * 1e38 * 1e5
            scaled.backward()
            scaler.unscale_(it.optimizer)
            torch.nn.utils.clip_grad_norm_(it.model.parameters(), 1.0)
            scaler.step(it.optimizer)
            scaler.update()
            it.scheduler.step()
            it.optimizer.zero_grad()
        if guard is not None:
            guard.close()
        return it, scaler, guard

    data = batches(10)
    plain, _, _ = loop(data, False, 4)
    guarded, scaler, guard = loop(data, True, 4)
    assert differing(state_of(plain), state_of(guarded)) == []
    assert scaler.get_scale() == 2.0**9
    assert guard.summary()["overflows"] == 1


def test_two_optimizers_are_judged_on_their_own() -> None:
    torch.manual_seed(0)
    left, right = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    first, second = torch.optim.SGD(left.parameters(), lr=0.1), torch.optim.Adam(right.parameters(), lr=0.1)
    guard = sg.attach([first, second], policy=SKIP_ONLY)
    before = [p.detach().clone() for p in [*left.parameters(), *right.parameters()]]
    left(torch.ones(2, 4)).sum().backward()
    (right(torch.ones(2, 4)).sum() * math.nan).backward()
    first.step()
    second.step()
    after = [*left.parameters(), *right.parameters()]
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert guard.summary()["skipped"] == 1
    guard.close()


def test_a_simple_optimizer_from_elsewhere_is_guarded_too() -> None:
    class Naive(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])

    model = torch.nn.Linear(3, 1)
    optimizer = Naive(model.parameters())
    guard = sg.attach(optimizer, model=model)
    before = model.weight.detach().clone()
    (model(torch.ones(2, 3)).sum() * math.inf).backward()
    optimizer.step()
    assert torch.equal(model.weight, before)
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    guard.close()


def test_after_close_the_loop_is_alone_again() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sg.attach(optimizer, model=model).close()
    (model(torch.ones(2, 3)).sum() * math.nan).backward()
    optimizer.step()
    assert torch.isnan(model.weight).all()


def test_a_streak_of_bad_steps_halts_the_loop() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = sg.attach(optimizer, model=model)
    steps = 0

    def train() -> None:
        nonlocal steps
        for _ in range(50):
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).sum() * math.nan).backward()
            steps += 1
            optimizer.step()

    with pytest.raises(sg.TrainingHalted, match="halted at step 9"):
        train()
    assert steps == 10
    guard.close()


def test_a_bad_step_of_lbfgs_is_undone_as_a_whole() -> None:
    def train(data: list[Tensor], guarded: bool) -> tuple[list[Tensor], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        guard = sg.attach(optimizer, model=model) if guarded else None
        for batch in data:

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        if guard is not None:
            guard.close()
        return [p.detach().clone() for p in model.parameters()], guard

    data = [torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    bad = data[2].clone()
    bad[1, 1] = math.nan
    plain, _ = train(data, False)
    healthy, guard = train(data, True)
    assert all(torch.equal(a, b) for a, b in zip(plain, healthy, strict=True))
    assert guard.summary()["skipped"] == 0
    weights, guard = train([*data[:3], bad, *data[3:]], True)
    assert all(torch.equal(a, b) for a, b in zip(plain, weights, strict=True))
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["final_state"] == "finite"


def test_an_unknown_object_gets_one_sentence() -> None:
    with pytest.raises(sg.UsageError, match="does not know what to do with a dict"):
        sg.attach({})


def test_whoever_asked_is_notified_of_an_incident() -> None:
    told: list[Any] = []
    it = setup()
    data = batches(3)
    with sg.attach(it.optimizer, model=it.model, notify=told.append) as guard:
        for batch in [*data, poisoned(data[0])]:
            it.optimizer.zero_grad()
            it.loss_fn(it.model, batch).backward()
            it.optimizer.step()
    assert [each["incident"]["first_step"] for each in told] == [3]
    assert guard.summary()["guard_faults"] == {}


def test_an_option_that_is_none_is_named_with_the_one_that_was_meant() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(sg.UsageError, match=r"There is no option modell\. Did you mean model\? The options are: "):
        sg.attach(optimizer, modell=model)
    with pytest.raises(sg.UsageError, match="scheduler is a SGD, not a learning-rate schedule"):
        sg.attach(optimizer, model=model, scheduler=optimizer)
    with pytest.raises(sg.UsageError, match=r"model is a Tensor, not a torch\.nn\.Module"):
        sg.attach(optimizer, model=torch.ones(3))
    with sg.attach(optimizer, model=model) as guard:  # nothing was left behind
        assert guard.summary()["applied"] == 0


def test_a_model_that_is_not_the_one_trained_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    trained, other = nn.Linear(4, 1), nn.Linear(4, 1)
    with sg.attach(torch.optim.SGD(trained.parameters(), lr=0.1), model=trained):
        pass
    assert "belongs to this" not in caplog.text
    with sg.attach(torch.optim.SGD(trained.parameters(), lr=0.1), model=other):
        pass
    assert "none of the optimizer's parameters belongs to this Linear" in caplog.text


def test_of_two_optimizers_the_one_that_was_refused_is_named_with_its_own_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    both = torch.nn.ModuleDict({"G": torch.nn.Linear(3, 3), "D": torch.nn.Linear(3, 1)})
    of_g, of_d = (torch.optim.Adam(both[name].parameters(), lr=1e-3) for name in "GD")
    with sg.attach([of_g, of_d], model=both) as guard:
        for number in range(6):
            for optimizer in (of_d, of_g):
                optimizer.zero_grad()
                real = torch.full((4, 3), math.nan) if number == 4 and optimizer is of_d else torch.ones(4, 3)
                both["D"](real if optimizer is of_d else both["G"](real)).mean().backward()
                optimizer.step()
    assert guard.incidents[0].headline.endswith("; step 4 of optimizer 2 of 2 (Adam of D)")
    assert "update 8 (of all optimizers) refused" in caplog.text


def test_the_limits_are_said_in_short_sentences() -> None:
    for said in (limits(with_model=True), limits(with_model=False)):
        assert "steady run" in said
        assert max(len(sentence.split()) for sentence in said.split(". ")) <= 35
