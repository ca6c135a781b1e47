"""Law 7: what breaks inside the guard does not break training; and what the user's code raises is the user's."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, Setup, batches, differing, loss_fn, make_guard, run_plain, setup, state_of
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.history import History
from steadygrad.engine.fault_barrier import UserCodeError
from steadygrad.engine.record import run_log
from steadygrad.engine.recovery import refusal_analysis, rollback, update_check
from steadygrad.engine.state import batch_buffer, forward_state, snapshot_ring
from steadygrad.engine.step import device_check, device_gate, plain_loop, sampled_checks
from steadygrad.engine.step.step_row import RowReader
from steadygrad.journal import Journal, read_events, read_steps

MODES = ["now", "late"]


class Planted(Exception):
    """A fault of the guard's own, made for a test."""


PARTS: dict[str, tuple[Any, str]] = {
    "journal.step": (Journal, "step"),
    "journal.incident": (Journal, "incident"),
    "journal.next_incident": (Journal, "next_incident"),
    "journal.quarantine": (Journal, "quarantine"),
    "judge": (run_log, "judge"),
    "decide": (run_log, "decide"),
    "history.limits": (History, "limits"),
    "history.admit": (History, "admit"),
    "history.to_plain": (History, "to_plain"),
    "books.enter": (run_log.RunLog, "enter"),
    "snapshots.take": (snapshot_ring.SnapshotRing, "take"),
    "recovery.before_update": (rollback.Rollback, "before_update"),
    "tape.put": (batch_buffer.BatchBuffer, "put"),
    "forward_state.take": (forward_state.ForwardState, "take"),
    "forward_state.notice": (forward_state.ForwardState, "notice"),
    "forward_state.restore": (forward_state.ForwardState, "restore"),
    "forward_state.audit": (forward_state.ForwardState, "audit"),
    "forward_state.release": (forward_state.ForwardState, "release"),
    "readout.pack": (RowReader, "pack"),
    "sealer.seal": (device_check.DeviceCheck, "seal"),
    "seat.values": (device_check.RowTransfer, "values"),
    "gate.take_fresh": (device_gate.DeviceGate, "take_fresh"),
    "gate.forget_fresh": (device_gate.DeviceGate, "forget_fresh"),
    "second_look.at": (refusal_analysis.RefusalAnalysis, "at"),
    "recovery.capabilities": (rollback.Rollback, "capabilities"),
    "recovery.note": (rollback.Rollback, "note"),
    "recovery.apply": (rollback.Rollback, "apply"),
    "update_check.before": (update_check.UpdateCheck, "before"),
    "sampled_checks.before_forward": (sampled_checks.StepSampler, "due"),
    "sampled_checks.vitals": (sampled_checks.StepSampler, "after_update"),
}
# Of these two the late mode alone makes use, or the immediate one alone.
ONLY = {"sealer.seal": "late", "seat.values": "late", "gate.take_fresh": "late",
        "gate.forget_fresh": "late", "update_check.before": "now"}  # fmt: skip


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def break_from(monkeypatch: pytest.MonkeyPatch, part: str, switch: list[bool], count: list[int]) -> None:
    home, name = PARTS[part]
    honest: Callable[..., Any] = getattr(home, name)

    def breaks(*args: Any, **options: Any) -> Any:
        if switch:
            count.append(1)
            raise Planted(part)
        return honest(*args, **options)

    monkeypatch.setattr(home, name, breaks)


WAYS = [(part, mode, False) for part in PARTS for mode in MODES if ONLY.get(part, mode) == mode]
# A scaler notes what it has unscaled, and a fault in between must not leave that note behind.
WAYS += [(part, mode, True) for part in ("readout.pack", "books.enter", "second_look.at") for mode in MODES]


@pytest.mark.parametrize(("part", "mode", "scaled"), WAYS)
def test_a_fault_in_any_part_does_not_stop_training_and_applies_no_bad_update(
    part: str, mode: str, scaled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch: list[bool] = []
    count: list[int] = []
    break_from(monkeypatch, part, switch, count)
    it = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None
    policy = SKIP_ONLY.but(snapshot_every=5, vitals_every=1)
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       settle=mode, run_dir=tmp_path, policy=policy, scaler=scaler)  # fmt: skip
    data = batches(24)
    for batch in data[:3]:
        guard.step(batch)
    before = {name: value.clone() for name, value in it.model.state_dict().items()}
    switch.append(True)
    for number, batch in enumerate(data[3:14]):
        guard.step(nan_batch() if number % 4 == 1 else batch)
    switch.clear()
    for batch in data[14:18]:
        guard.step(batch)
    summary = guard.summary()
    guard.close()
    assert count, "the planted fault was never met"
    assert summary["guard_faults"], summary
    assert sum(summary["guard_faults"].values()) >= 1
    for name, parameter in it.model.named_parameters():
        assert parameter.isfinite().all(), name
    for held in it.optimizer.state.values():
        assert all(value.isfinite().all() for value in held.values() if isinstance(value, Tensor))
    after = it.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before), "training did not go on"


def test_a_fault_that_cannot_even_be_journaled_does_not_stop_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events: list[int] = []
    break_from(monkeypatch, "judge", [True], [])
    monkeypatch.setitem(PARTS, "journal.event", (Journal, "event"))
    break_from(monkeypatch, "journal.event", [True], events)
    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn, run_dir=tmp_path) as guard:
        outcomes = [guard.step(batch) for batch in [*batches(3), nan_batch(), *batches(2)]]
        assert guard.summary()["guard_faults"]["watch"] >= 6
    assert events
    assert [outcome.applied for outcome in outcomes] == [True] * 3 + [False] + [True] * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "part", ["journal.step", "judge", "history.limits", "snapshots.take", "tape.put", "sampled_checks.vitals"]
)
def test_a_fault_behind_the_barrier_leaves_the_numbers_exact(
    part: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(14)
    plain = state_of(run_plain(data))
    break_from(monkeypatch, part, [True], [])
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       settle=mode, policy=SKIP_ONLY.but(vitals_every=1))  # fmt: skip
    with guard:
        for batch in [*data[:6], nan_batch(), *data[6:]]:
            guard.step(batch)
        summary = guard.summary()
    assert summary["guard_faults"]
    assert not summary["standing_down"]
    assert differing(plain, state_of(it)) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_guard_that_stands_down_says_so_and_loses_no_good_step(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = batches(12)
    plain = state_of(run_plain(data))
    switch: list[bool] = []
    break_from(monkeypatch, "readout.pack", switch, [])
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       settle=mode, run_dir=tmp_path)  # fmt: skip
    for batch in data[:5]:
        guard.step(batch)
    switch.append(True)
    outcomes = [guard.step(batch) for batch in data[5:]]
    summary = guard.summary()
    guard.close()
    assert summary["standing_down"]
    assert summary["guard_faults"] == {"guard": 1}
    assert all(outcome.applied for outcome in outcomes)
    assert "internal error of steadygrad IE101 in guard (Planted: readout.pack)" in caplog.text
    assert any(event.kind == "guard_fault" for event in read_events(tmp_path))
    assert differing(plain, state_of(it)) == []


def test_the_plain_loop_that_is_left_refuses_what_is_not_finite() -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn)
    guard._loop.stand_down(Planted("for the test"))
    assert isinstance(guard._loop.fallback, plain_loop.PlainLoop)
    assert guard.step(batches(1)[0]).applied
    refused = guard.step(nan_batch())
    assert refused.skipped
    assert refused.decision is not None
    assert "standing down" in refused.decision.reason
    assert all(p.isfinite().all() for p in it.model.parameters())
    guard.close()


# -- the user's own exceptions


class TheirOwn(RuntimeError):
    pass


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", [0, 5])
@pytest.mark.parametrize("error", [TheirOwn, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["before", "forward", "backward"])
def test_what_loss_fn_raises_reaches_the_user_and_leaves_what_a_plain_loop_leaves(
    mode: str, where: int, error: type[BaseException], when: str
) -> None:
    bad = batches(1)[0].clone()
    bad[0, 0] = 77.0
    data = batches(10)
    data.insert(where, bad)

    def run(guarded: bool) -> Setup:
        it = setup()

        def raising(model: nn.Module, batch: Tensor) -> Tensor:
            if batch is bad and when == "before":
                raise error("mine")
            loss = loss_fn(model, batch)
            if batch is bad and when == "forward":
                raise error("mine")
            if batch is bad:
                loss.register_hook(_raise(error))
            return loss

        it.loss_fn = raising
        if not guarded:
            return plain_loop_that_catches(it, data, error)
        with make_guard(it.model, it.optimizer, raising, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                        settle=mode) as guard:  # fmt: skip
            for batch in data:
                with contextlib.suppress(error):
                    guard.step(batch)
            assert guard.summary()["guard_faults"] == {}
        return it

    assert differing(state_of(run(False)), state_of(run(True))) == []


def plain_loop_that_catches(
    it: Setup, data: Sequence[Tensor], error: type[BaseException], accumulate: int = 1
) -> Setup:
    made = 0
    for batch in data:
        try:
            (it.loss_fn(it.model, batch) / accumulate).backward()
        except error:
            if not made:
                it.optimizer.zero_grad()
            continue
        made += 1
        if made % accumulate:
            continue
        torch.nn.utils.clip_grad_norm_(it.model.parameters(), 1.0)
        it.optimizer.step()
        it.scheduler.step()
        it.ema.update_parameters(it.model)
        it.optimizer.zero_grad()
        made = 0
    return it


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", [0, 1, 4])
def test_micro_batches_before_one_that_raised_stay_in_their_window(mode: str, where: int) -> None:
    bad = batches(1)[0].clone()
    data = batches(9)
    data.insert(where, bad)

    def raising(model: nn.Module, batch: Tensor) -> Tensor:
        loss = loss_fn(model, batch)
        if batch is bad:
            raise TheirOwn("mine")
        return loss

    it = setup()
    with make_guard(it.model, it.optimizer, raising, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                    settle=mode, accumulate=3) as guard:  # fmt: skip
        for batch in data:
            with contextlib.suppress(TheirOwn):
                guard.step(batch)
        assert guard.summary()["applied"] == 3
    here = state_of(it)
    plain = setup()
    plain.loss_fn = raising
    assert differing(state_of(plain_loop_that_catches(plain, data, TheirOwn, 3)), here) == []


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_that_is_looked_into_leaves_what_it_left(mode: str) -> None:
    """With a NaN near it the forward is run again, to name where it came from."""

    def run(guarded: bool) -> Setup:
        it = setup()
        bad = batches(1)[0].clone()
        bad[1, 8] = math.nan

        def raising(model: nn.Module, batch: Tensor) -> Tensor:
            loss = loss_fn(model, batch)
            if not bool(loss.detach().isfinite()):
                raise TheirOwn("the loss is not finite")
            return loss

        data = [*batches(3), bad, *batches(3, seed=2)]
        it.loss_fn = raising
        if not guarded:
            return plain_loop_that_catches(it, data, TheirOwn)
        with make_guard(it.model, it.optimizer, raising, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                        settle=mode, diagnose="auto") as guard:  # fmt: skip
            for batch in data:
                with contextlib.suppress(TheirOwn):
                    guard.step(batch)
            assert len(guard.incidents) == 1
        return it

    assert differing(state_of(run(False)), state_of(run(True))) == []


def _raise(error: type[BaseException]) -> Callable[[Tensor], Tensor]:
    def hook(gradient: Tensor) -> Tensor:
        raise error("mine")

    return hook


def test_an_error_of_the_optimizer_reaches_the_user_and_the_scaler_is_not_left_half_done() -> None:
    it = setup(lambda p: Stubborn(p, lr=0.01))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with make_guard(it.model, it.optimizer, it.loss_fn, scaler=scaler) as guard:
        guard.step(batches(1)[0])
        it.optimizer.stubborn = True  # type: ignore[attr-defined]
        with pytest.raises(TheirOwn, match="will not"):
            guard.step(batches(1)[0])
        it.optimizer.stubborn = False  # type: ignore[attr-defined]
        assert guard.step(batches(1)[0]).applied
        assert guard.summary()["guard_faults"] == {}


class Stubborn(torch.optim.SGD):
    stubborn = False

    def step(self, closure: Any = None) -> Any:
        if self.stubborn:
            raise TheirOwn("will not")
        return super().step(closure)


# -- ends


def test_a_guard_is_a_context_manager_and_closing_twice_is_fine(tmp_path: Path) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, run_dir=tmp_path)

    def breaks_off() -> None:
        with guard:
            guard.step(batches(1)[0])
            raise TheirOwn

    with pytest.raises(TheirOwn):
        breaks_off()
    guard.close()
    assert [record.step for record in read_steps(tmp_path)] == [0]
    # The optimizer is free again.
    with make_guard(it.model, it.optimizer, it.loss_fn) as again:
        assert again.step(batches(1)[0]).applied


@pytest.mark.parametrize("mode", MODES)
def test_the_last_step_in_flight_is_journaled_when_the_guard_closes(mode: str, tmp_path: Path) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, settle=mode, run_dir=tmp_path)
    for batch in batches(4):
        guard.step(batch)
    guard.step(nan_batch())
    guard.close()
    records = list(read_steps(tmp_path))
    assert [record.step for record in records] == [0, 1, 2, 3, 4]
    assert [record.applied for record in records] == [True] * 4 + [False]
    assert math.isnan(records[-1].loss)


@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_in_a_real_process_leaves_the_journal_whole(mode: str, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import signal, sys, time, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
        sys.path.insert(0, {here!r})
        from specimens import make_guard, setup, batches
        torch.set_num_threads(1)
        it = setup()
        with make_guard(it.model, it.optimizer, it.loss_fn, run_dir={run!r}, settle={mode!r}) as guard:
            for number, batch in enumerate(batches(10_000)):
                guard.step(batch)
                if number == 5:
                    print("ready", flush=True)
                time.sleep(0.001)
        """
    ).format(here=str(Path(__file__).parent), run=str(tmp_path / "run"), mode=mode)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert child.returncode in (1, 130, -signal.SIGINT)
    steps = [record.step for record in read_steps(tmp_path / "run")]
    assert len(steps) >= 6
    assert steps == list(range(len(steps)))


def test_all_names_of_the_guard_are_public_where_a_user_needs_them() -> None:
    assert {"step", "settle", "close", "summary", "incidents", "batches_seen", "step_number"} <= set(dir(sg.Guard))


@pytest.mark.parametrize("reader", ["model", "optimizer"])
def test_what_the_program_raises_while_the_last_step_is_settled_reaches_it(
    reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, settle="late")
    guard.step(batches(1)[0])

    def theirs() -> None:
        raise UserCodeError(KeyError("theirs"))

    monkeypatch.setattr(guard._loop, "settle", theirs)
    with pytest.raises(KeyError, match="theirs"):
        getattr(it, reader).state_dict()


def test_a_fault_of_ours_while_the_last_step_is_settled_does_not_reach_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, settle="late")
    guard.step(batches(1)[0])

    def ours() -> None:
        raise Planted

    monkeypatch.setattr(guard._loop, "settle", ours)
    assert it.model.state_dict()
    assert guard.step(batches(1)[0]).applied


@pytest.mark.parametrize("entry_point", ["guard", "attach"])
def test_a_logging_handler_that_raises_does_not_end_the_training(entry_point: str) -> None:
    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage())

    strict = Strict()
    logging.getLogger("steadygrad").addHandler(strict)
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard: Any = sg.attach(optimizer, model=model)
        if entry_point == "guard":
            guard.close()
            guard = sg.Guard(model, optimizer, lambda m, batch: m(batch).square().mean(), diagnose="off")
        for batch in (torch.ones(2, 2), torch.full((2, 2), torch.nan), torch.ones(2, 2)):
            if entry_point == "guard":
                guard.step(batch)
                continue
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        guard.close()
    finally:
        logging.getLogger("steadygrad").removeHandler(strict)
    told = guard.summary()
    assert (told["applied"], told["skipped"], told["guard_faults"]) == (2, 1, {})
