"""Back to a good state: the good batches are run again and arrive at the bits of a run that never had the trouble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, batches, differing, make_guard, run_plain, same_bits, setup, state_of
from torch import Tensor, nn, optim

from steadygrad.records.errors import TrainingHalted

MODES = ["now", "late"]
OFTEN = SKIP_ONLY.but(snapshot_every=4)


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def poke_parameter(it: Any) -> None:
    it.model.second.parametrizations.weight.original.data[0, 0] = math.nan


def poke_state(it: Any) -> None:
    next(iter(it.optimizer.state.values()))["exp_avg"][0] = math.nan


def poke_buffer(it: Any) -> None:
    it.model.norm.running_var[2] = math.inf


def run_with_poke(
    data: Sequence[Tensor], poke: Any, at: int, *, policy: Any = OFTEN, **options: Any
) -> tuple[Any, dict[str, Any]]:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       policy=policy, **options)  # fmt: skip
    with guard:
        for number, batch in enumerate(data):
            if number == at:
                guard.settle()
                poke(it)
            guard.step(batch)
        summary = guard.summary()
    assert summary["guard_faults"] == {}
    return it, summary


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("poke", [poke_parameter, poke_state], ids=["parameter", "state"])
def test_a_poisoned_state_is_rolled_back_and_no_good_batch_is_lost(mode: str, at: int, poke: Any) -> None:
    data = batches(16)
    plain = state_of(run_plain(data))
    it, summary = run_with_poke(data, poke, at, settle=mode)
    assert summary["rolled_back"] == 1
    assert differing(plain, state_of(it)) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("at", [7, 14, 19])
def test_a_rollback_in_the_middle_of_an_accumulation_window_is_exact(mode: str, accumulate: int, at: int) -> None:
    data = batches(30)
    plain = state_of(run_plain(data, accumulate=accumulate))
    it, summary = run_with_poke(data, poke_parameter, at, settle=mode, accumulate=accumulate)
    assert summary["rolled_back"] == 1
    assert differing(plain, state_of(it)) == []


class Slow(nn.Module):
    """Bad news travels slowly: what happens to the dormant weight shows only when a batch uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(8, 1)
        self.dormant = nn.Linear(8, 1)
        self.fed_poison = False

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Poisonous(optim.AdamW):
    """Its update of a poisonous batch writes a NaN where nobody looks; every other update is AdamW's."""

    model: Any = None

    def step(self, closure: Any = None) -> Any:
        answer = super().step(closure)
        if self.model.fed_poison:
            self.model.dormant.weight.data[0, 0] = math.nan
        return answer


WAKES, POISONS = 77.0, 79.0


def slow_loss(model: Any, batch: Tensor) -> Tensor:
    mark = float(batch[0, 0])
    model.fed_poison = mark == POISONS
    loss = (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()
    return loss + model.dormant(batch[:, :8] / 77.0).pow(2).mean() if mark == WAKES else loss


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
def test_poison_found_k_steps_late_is_undone_to_the_bit(k: int) -> None:
    """The update of one batch makes a weight NaN, which no loss sees until k steps later."""
    good = batches(40)
    good[12][0, 0] = WAKES
    good[20 + k - 1][0, 0] = WAKES
    poison = batches(41)[40].clone()
    poison[0, 0] = POISONS

    def run(data: Sequence[Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = Slow()
        optimizer = Poisonous(model.parameters(), lr=0.01)
        optimizer.model = model
        with make_guard(model, optimizer, slow_loss, policy=SKIP_ONLY.but(snapshot_every=9)) as guard:
            for batch in data:
                guard.step(batch)
            summary = guard.summary()
        assert summary["guard_faults"] == {}
        return _bits(model, optimizer), summary

    clean, _ = run(good)
    got, summary = run([*good[:20], poison, *good[20:]])
    assert summary["skipped"] == 1  # an optimizer that torch does not bring along: undone at once
    assert same_bits(clean, got) == []


def _bits(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.state_dict())
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        held = optimizer.state.get(parameter, {})
        state |= {f"{number}.{key}": value for key, value in held.items() if value is not None}
    return state


def fp16_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8].half()).float() - batch[:, 8:]).pow(2).mean()


def test_adamw_with_an_epsilon_that_float16_cannot_hold_is_undone() -> None:
    """eps=1e-8 is 0 in float16: a zero gradient divides zero by zero, the update itself makes the weights NaN."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1).half()
    optimizer = optim.AdamW(model.parameters(), lr=0.01, eps=1e-8, foreach=False)
    # Every batch trains column 0 but the late ones leave column 7 at exactly zero from the start: 0 / 0 there.
    data = batches(8)
    dead = batches(9)[8].clone()
    dead[:, 7] = 0.0
    policy = SKIP_ONLY.but(snapshot_every=2, max_rollbacks=100)
    with make_guard(model, optimizer, fp16_loss, policy=policy) as guard:
        guard.step(dead)  # its second moment underflows to zero in column 7
        for batch in data:
            guard.step(batch)
        summary = guard.summary()
    # The first update of a weight is looked at before it is believed, so nothing has to be rolled back.
    assert (summary["skipped"] >= 1, summary["rolled_back"]) == (True, 0)
    assert all(p.isfinite().all() for p in model.parameters())
    assert summary["applied"] >= 1


def test_two_rollbacks_run_no_batch_twice() -> None:
    data = batches(30)
    plain = state_of(run_plain(data))
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       policy=SKIP_ONLY.but(snapshot_every=2))  # fmt: skip
    with guard:
        for number, batch in enumerate(data):
            if number in (6, 7, 8):  # refused batches take step numbers, so a re-run has other numbers than the run
                guard.step(nan_batch())
                guard.step(nan_batch())
            if number in (9, 12, 19):
                poke_parameter(it)
            guard.step(batch)
        summary = guard.summary()
    assert summary["rolled_back"] == 3
    assert differing(plain, state_of(it)) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_snapshot_falls_between_windows_even_when_a_bad_one_ended_there(mode: str) -> None:
    """Good micro-batches left over from a refused window are half of the next one: no moment for a snapshot."""
    data = batches(24)
    for place in range(1, 9):
        plain = state_of(run_plain(data, accumulate=3))
        it = setup()
        guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                           policy=SKIP_ONLY.but(snapshot_every=2), accumulate=3, settle=mode)  # fmt: skip
        with guard:
            for number, batch in enumerate(data):
                if number == place:
                    guard.step(nan_batch())
                if number == 20:
                    guard.settle()
                    poke_parameter(it)
                guard.step(batch)
            assert guard.summary()["rolled_back"] == 1
        assert differing(plain, state_of(it)) == [], place


def test_bf16_parameters_with_float32_moments_keep_dtype_and_bits() -> None:
    def run(poke: bool) -> tuple[nn.Module, optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(8, 1).bfloat16()
        wide = WideMomentum(model.parameters(), lr=0.05)

        def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
            return (model(batch[:, :8].bfloat16()).float() - batch[:, 8:]).pow(2).mean()

        with make_guard(model, wide, loss_fn, policy=OFTEN) as guard:
            for number, batch in enumerate(batches(14)):
                if poke and number == 10:
                    next(iter(wide.state.values()))["momentum"][0] = math.nan
                    model.weight.data[0, 1] = math.inf
                guard.step(batch)
            assert guard.summary()["rolled_back"] == int(poke)
        return model, wide

    clean, poked = run(False), run(True)
    assert {v.dtype for s in poked[1].state.values() for v in s.values()} == {torch.float32}
    assert poked[0].weight.dtype is torch.bfloat16
    assert same_bits(_bits(*clean), _bits(*poked)) == []


class WideMomentum(optim.Optimizer):
    """SGD that keeps its momentum in float32 whatever the parameter is."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault(
                    "momentum", torch.zeros_like(parameter, dtype=torch.float32)
                )
                momentum.mul_(0.9).add_(parameter.grad.float())
                parameter.add_(momentum.to(parameter.dtype), alpha=-group["lr"])


def test_without_a_good_snapshot_poison_halts_instead_of_going_on() -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, snapshots="off")
    guard.step(batches(1)[0])
    poke_parameter(it)
    with pytest.raises(TrainingHalted, match="no good snapshot to go back to"):
        guard.step(batches(1)[0])
    guard.close()


# -- halting and backing off


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_run_of_bad_batches_halts_after_exactly_so_many(mode: str, limit: int) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, settle=mode, policy=SKIP_ONLY.but(skip_streak_halt=limit))
    for batch in batches(3):
        guard.step(batch)
    before = {name: value.clone() for name, value in it.model.state_dict().items()}
    fed = 0
    with pytest.raises(TrainingHalted, match=f"{limit} bad steps in a row") as halted:  # noqa: PT012
        while fed < 100:
            fed += 1
            guard.step(nan_batch())
    assert halted.value.exit_code == 23
    summary = guard.summary()
    assert summary["halted"]
    assert summary["skipped"] == limit
    # Late, the host learns of a step at the next one, which then is not trained on.
    assert fed == limit if mode == "now" else fed in (limit, limit + 1)
    assert all(torch.equal(value, before[name]) for name, value in it.model.state_dict().items())
    with pytest.raises(TrainingHalted):
        guard.step(batches(1)[0])
    guard.close()


@pytest.mark.parametrize("mode", MODES)
def test_the_learning_rate_backs_off_and_returns_exactly(mode: str) -> None:
    """Four rungs' worth of NaN, then calm: x1, x0.5, and back to x1, around a schedule that never notices."""
    from steadygrad.records import Action

    policy = SKIP_ONLY.but(escalation=((2, Action.SCALE_LR), (3, Action.SCALE_LR)), recovery_steps=4)
    data = batches(30)
    plan = ["good"] * 3 + ["nan"] * 3 + ["good"] * 12
    seen: list[tuple[float, ...]] = []
    it = setup(lambda p: Watched(p, seen))
    guard = make_guard(it.model, it.optimizer, it.loss_fn, scheduler=it.scheduler, policy=policy, settle=mode)
    with guard:
        for number, kind in enumerate(plan):
            guard.step(data[number] if kind == "good" else overflowing(data[number]))
        summary = guard.summary()
    schedule = [1e-2 * 0.9 ** (landed // 3) for landed in range(15)]
    # The decision of the fourth healthy step takes one rung off for the step after it.
    factors = [1.0] * 3 + [0.25] * 4 + [0.5] * 4 + [1.0] * 4
    assert [rates[0] for rates in seen] == pytest.approx(
        [r * f for r, f in zip(schedule, factors, strict=True)], rel=1e-12
    )
    assert summary["lr_factor"] == 1.0
    assert it.optimizer.param_groups[0]["lr"] == it.scheduler.get_last_lr()[0]


def overflowing(batch: Tensor) -> Tensor:
    """A batch that is finite itself and whose loss is not."""
    bad = batch.clone()
    bad[:, 8] = 1e19
    return bad


class Watched(optim.AdamW):
    """AdamW that writes down the rates it was stepped with."""

    def __init__(self, parameters: Any, seen: list[tuple[float, ...]]) -> None:
        super().__init__(parameters, lr=1e-2, foreach=False)
        self._seen = seen

    def step(self, closure: Any = None) -> Any:
        self._seen.append(tuple(group["lr"] for group in self.param_groups))
        return super().step(closure)


# -- what is not registered


def test_an_attribute_that_first_moves_late_is_restored_all_the_same(tmp_path: Any) -> None:
    from steadygrad.journal import read_events

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)
            self.forwards = torch.zeros(())
            self.seen_late = 0

        def forward(self, x: Tensor) -> Tensor:
            self.forwards += 1
            if float(self.forwards) > 6:
                self.seen_late += 1
            return self.linear(x)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    model = Late()
    with make_guard(model, optim.AdamW(model.parameters(), fused=True), loss_fn, run_dir=tmp_path) as guard:
        for batch in batches(9):
            guard.step(batch)
        assert model.seen_late == 3
        guard.step(nan_batch())
        assert model.seen_late == 3
        guard.step(batches(1)[0])
        guard.step(nan_batch())
        assert model.seen_late == 4
    assert [event for event in read_events(tmp_path) if event.kind == "unregistered_state_changed"] == []


def test_a_list_that_grows_and_an_attribute_that_appears_are_reported_once(tmp_path: Any) -> None:
    from steadygrad.journal import read_events

    class Collecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)
            self.seen: list[float] = []
            self.steady: list[float] = [1.0]

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(float(x.detach().mean()))
            self.newest = x.detach().mean()
            return self.linear(x)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    model = Collecting()
    with make_guard(model, optim.AdamW(model.parameters(), fused=True), loss_fn, run_dir=tmp_path) as guard:
        for batch in [*batches(3), nan_batch(), *batches(2), nan_batch()]:
            guard.step(batch)
        assert guard.summary()["guard_faults"] == {}
    events = [event for event in read_events(tmp_path) if event.kind == "unregistered_state_changed"]
    assert [sorted(event.data["names"]) for event in events] == [["newest", "seen"]]


@pytest.mark.parametrize("kind", ["frozen norm", "loaded", "set by hand"])
@pytest.mark.parametrize("mode", MODES)
def test_a_buffer_that_begins_to_move_late_is_restored_to_what_it_was(kind: str, mode: str) -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 12)
            self.batch = nn.BatchNorm1d(12)
            self.instance = nn.InstanceNorm1d(3, track_running_stats=True)  # counts no batches, unlike batch norm
            self.head = nn.Linear(12, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.instance(self.batch(self.first(x)).view(-1, 3, 4)).flatten(1))

    def run(data: Sequence[Tensor], guarded: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        model = Normed()
        norms = (model.batch, model.instance)
        optimizer = optim.AdamW(model.parameters(), lr=0.01, fused=True)
        guard = make_guard(model, optimizer, loss_fn, settle=mode) if guarded else None
        for norm in norms:
            norm.eval()
        number = 0
        for batch in data:
            if number == 5 and not batch.isnan().any():
                if guard is not None:
                    guard.settle()
                if kind == "frozen norm":
                    for norm in norms:
                        norm.train()
                elif kind == "loaded":
                    model.load_state_dict({**model.state_dict(), "batch.running_mean": torch.full((12,), 0.5)})
                else:
                    model.batch.running_mean.fill_(0.25)
            number += not batch.isnan().any()
            if guard is not None:
                guard.step(batch)
                continue
            loss_fn(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            guard.close()
        return dict(model.state_dict())

    good = batches(12)
    expected = run(good, guarded=False)
    for where in (5, 6, 8):
        assert same_bits(expected, run([*good[:where], nan_batch(), *good[where:]], guarded=True)) == [], where


class HandWrittenAverage:
    """What people write: no state_dict, a dictionary of copies, a counter, and the model itself held on to."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.updates = model, 0
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module | None = None) -> None:
        self.updates += 1
        rate = 1 / (1 + self.updates)
        for name, value in self.model.named_parameters():
            self.shadow[name].lerp_(value, rate)


@pytest.mark.parametrize("given", ["object", "method"])
def test_an_average_written_by_hand_is_rolled_back_with_the_rest(given: str) -> None:
    data = batches(14)

    def run(poke_at: int | None) -> HandWrittenAverage:
        it = setup()
        average = HandWrittenAverage(it.model)
        ema = average if given == "object" else average.update
        with make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, ema=ema, policy=OFTEN) as guard:
            for number, batch in enumerate(data):
                if number == poke_at:
                    poke_parameter(it)
                guard.step(batch)
            assert guard.summary()["rolled_back"] == (poke_at is not None)
            assert guard.summary()["guard_faults"] == {}
        return average

    wanted, found = run(None), run(6)
    assert found.updates == wanted.updates == len(data)
    assert all(torch.equal(found.shadow[name], value) for name, value in wanted.shadow.items())
