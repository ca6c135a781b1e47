"""Checkpoints: whole or not there, never of a bad state, and a run that resumes from one is the run itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, batches, differing, make_guard, run_plain, same_bits, setup, state_of
from torch import Tensor, nn, optim

from steadygrad.records import Action
from steadygrad.records.errors import TrainingHalted, UsageError

MODES = ["now", "late"]


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "snapshots").iterdir())


def guarded(run: Path, it: Any, **options: Any) -> Any:
    options = {"checkpoint_every": 5, "resume": True, "max_grad_norm": 1.0, **options}
    return make_guard(it.model, it.optimizer, it.loss_fn, scheduler=it.scheduler, ema=it.ema, run_dir=run, **options)


def feed(run: Path, data: list[Tensor], upto: int, **options: Any) -> Any:
    """A process that resumes, goes on until `upto` batches are seen, and is then gone without a word."""
    it = setup()
    guard = guarded(run, it, **options)
    it.began = guard.batches_seen  # type: ignore[attr-defined]
    for batch in data[guard.batches_seen : upto]:
        guard.step(batch)
    it.summary = guard.summary()  # type: ignore[attr-defined]
    guard.close()
    return it


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_resumed_run_is_the_run_itself(mode: str, accumulate: int, tmp_path: Path) -> None:
    good = batches(36)
    mixed = [*good[:4], nan_batch(), *good[4:17], nan_batch(), nan_batch(), *good[17:29], nan_batch(), *good[29:]]
    expected = state_of(run_plain(good, accumulate=accumulate))
    for upto in (9, 20, 21, 31):
        feed(tmp_path, mixed, upto, settle=mode, accumulate=accumulate)
    it = feed(tmp_path, mixed, len(mixed), settle=mode, accumulate=accumulate)
    assert it.began > 0
    assert differing(expected, state_of(it)) == []
    assert it.summary["guard_faults"] == {}
    whole = feed(tmp_path / "uninterrupted", mixed, len(mixed), settle=mode, accumulate=accumulate)
    for word in ("steps", "applied", "skipped", "success_rate", "first_bad_step", "last_bad_step"):
        assert it.summary[word] == whole.summary[word], word


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_batch_right_after_a_resume_leaves_no_trace(mode: str, tmp_path: Path) -> None:
    """Buffers restored from disk must not be taken for those the model was made with."""
    good = batches(20)
    expected = state_of(run_plain(good))
    feed(tmp_path, good, 11, settle=mode)
    it = setup()
    guard = guarded(tmp_path, it, settle=mode)
    assert guard.batches_seen == 10
    guard.step(nan_batch())
    for batch in good[10:14]:
        guard.step(batch)
    guard.step(nan_batch())
    for batch in good[14:]:
        guard.step(batch)
    guard.close()
    assert differing(expected, state_of(it)) == []


def test_poison_right_after_a_resume_is_rolled_back_to_the_resumed_state(tmp_path: Path) -> None:
    good = batches(20)
    expected = state_of(run_plain(good))
    feed(tmp_path, good, 11)
    it = setup()
    guard = guarded(tmp_path, it)
    for number, batch in enumerate(good[10:]):
        if number == 2:
            it.model.head.weight.data[0, 0] = math.nan  # type: ignore[operator,union-attr]
        guard.step(batch)
    assert guard.summary()["rolled_back"] == 1
    guard.close()
    assert differing(expected, state_of(it)) == []


def test_the_learning_rate_in_force_survives_a_resume(tmp_path: Path) -> None:
    policy = SKIP_ONLY.but(escalation=((2, Action.SCALE_LR), (3, Action.SCALE_LR)), recovery_steps=8)
    good = batches(30)
    bad = good[0].clone()
    bad[:, 8] = 1e19  # finite itself, but its loss is not
    mixed = [*good[:4], bad, bad, bad, *good[4:]]
    whole = feed(tmp_path / "whole", mixed, len(mixed), policy=policy)
    for upto in (8, 13, 19, 27):
        part = feed(tmp_path / "parts", mixed, upto, policy=policy)
        assert part.summary["lr_factor"] == {8: 0.25, 13: 0.25, 19: 0.5, 27: 1.0}[upto]
    it = feed(tmp_path / "parts", mixed, len(mixed), policy=policy)
    assert differing(state_of(whole), state_of(it)) == []
    assert it.summary["lr_factor"] == whole.summary["lr_factor"] == 1.0


def test_a_resumed_run_compares_the_next_step_with_the_limits_it_had(tmp_path: Path) -> None:
    it = setup()
    guard = guarded(tmp_path, it, checkpoint_every=50)
    for batch in batches(100):
        guard.step(batch)
    (limits, before) = (guard._loop.log.limits(1.0), guard._loop.log.history.to_plain())
    guard._loop.recovery.save_checkpoint(guard.step_number, guard.batches_seen)
    guard.close()
    assert math.isfinite(limits.grad_norm)
    resumed = guarded(tmp_path, setup(), checkpoint_every=50)
    assert resumed._loop.log.history.to_plain() == before
    # Limits follow the history in jumps, so the history alone would not give the same ones.
    assert resumed._loop.log.limits_in_force == limits
    resumed.close()


def test_a_dropped_term_stays_dropped_over_a_resume(tmp_path: Path) -> None:
    policy = SKIP_ONLY.but(drop_term_after=2, recovery_steps=1000)

    def two(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        ce = (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()
        kd = model(batch[:, :8]).abs().mean() * (math.nan if float(batch[0, 0]) == 77.0 else 0.1)
        return {"loss": ce + kd, "ce": ce, "kd": kd}

    data = batches(24)
    for number in (4, 5):
        data[number][0, 0] = 77.0

    def run(where: Path, upto: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        guard = make_guard(model, optimizer, two, run_dir=where, checkpoint_every=5, resume=True, policy=policy)
        for batch in data[guard.batches_seen : upto]:
            guard.step(batch)
        dropped = guard._loop.program.dropped_terms
        assert guard.summary()["dropped_terms"] == list(dropped)
        guard.close()
        return model, dropped

    whole, dropped = run(tmp_path / "whole", 24)
    assert dropped == ("kd",)
    run(tmp_path / "parts", 13)
    parts, dropped = run(tmp_path / "parts", 24)
    assert dropped == ("kd",)
    assert same_bits(dict(whole.state_dict()), dict(parts.state_dict())) == []


def test_bf16_weights_and_float32_moments_come_back_as_they_were(tmp_path: Path) -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8].bfloat16()).float() - batch[:, 8:]).pow(2).mean()

    class Wide(optim.Optimizer):
        """Keeps its momentum in float32, which load_state_dict would cast to the weights' bfloat16."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.05})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter, dtype=torch.float32))
                momentum.mul_(0.9).add_(parameter.grad.float())
                parameter.add_(momentum.to(parameter.dtype), alpha=-0.05)

    def run(where: Path, upto: int) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Linear(8, 1).bfloat16()
        optimizer = Wide(model.parameters())
        guard = make_guard(model, optimizer, loss_fn, run_dir=where, checkpoint_every=4, resume=True)
        for batch in batches(16)[guard.batches_seen : upto]:
            guard.step(batch)
        guard.close()
        moments = [state["momentum"] for state in optimizer.state.values()]
        assert {moment.dtype for moment in moments} == {torch.float32}
        return {**model.state_dict(), **{str(number): moment for number, moment in enumerate(moments)}}

    whole = run(tmp_path / "whole", 16)
    run(tmp_path / "parts", 10)
    assert same_bits(whole, run(tmp_path / "parts", 16)) == []


def test_tied_weights_are_kept_and_come_back_tied(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(8, 8, bias=False)
            self.decode = nn.Linear(8, 8, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.tanh(self.encode(x)))

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, :8]).pow(2).mean()

    def run(where: Path, upto: int) -> Tied:
        torch.manual_seed(0)
        model = Tied()
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        guard = make_guard(model, optimizer, loss_fn, run_dir=where, checkpoint_every=4, resume=True)
        for batch in batches(12)[guard.batches_seen : upto]:
            guard.step(batch)
        assert guard.summary()["guard_faults"] == {}
        guard.close()
        return model

    whole = run(tmp_path / "whole", 12)
    run(tmp_path / "parts", 6)
    parts = run(tmp_path / "parts", 12)
    assert parts.decode.weight is parts.encode.weight
    assert torch.equal(whole.encode.weight, parts.encode.weight)


# -- what is on disk


def test_a_checkpoint_holds_tensors_and_json_and_nothing_that_executes(tmp_path: Path) -> None:
    feed(tmp_path, batches(6), 6)
    (only,) = (tmp_path / "snapshots").iterdir()
    assert sorted(path.name for path in only.iterdir()) == ["state.json", "state.safetensors"]
    manifest = json.loads((only / "state.json").read_text())
    assert manifest["step"] == 5
    for path in tmp_path.rglob("*"):
        if path.is_file():
            # Pickles begin with the byte 0x80 and a protocol number, zip archives of torch with "PK".
            assert path.read_bytes()[:2] not in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), path


def test_a_state_that_is_not_finite_is_never_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    it = setup()
    guard = guarded(tmp_path, it, policy="observe", snapshots="off")
    for batch in batches(6):
        guard.step(batch)
    assert names(tmp_path) == ["step-00000005"]
    guard.step(nan_batch())
    for batch in batches(8):
        guard.step(batch)
    guard.close()
    assert names(tmp_path) == ["step-00000005"]
    assert "no checkpoint at step 10" in caplog.text
    assert "not finite" in caplog.text


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    feed(tmp_path, batches(31), 31, keep_checkpoints=2)
    assert names(tmp_path) == ["step-00000025", "step-00000030"]


def test_what_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    mine = tmp_path / "snapshots" / "my-notes"
    mine.mkdir(parents=True)
    (mine / "keep.txt").write_text("mine")
    feed(tmp_path, batches(31), 31, keep_checkpoints=1)
    assert names(tmp_path) == ["my-notes", "step-00000030"]
    assert (mine / "keep.txt").read_text() == "mine"


def damage(path: Path, how: str) -> None:
    tensors, manifest = path / "state.safetensors", path / "state.json"
    if how == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif how == "flipped":
        data = bytearray(tensors.read_bytes())
        data[-40] ^= 0x10
        tensors.write_bytes(bytes(data))
    elif how == "newer":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    elif how == "torn manifest":
        manifest.write_text(manifest.read_text()[:200])
    elif how == "no manifest":
        manifest.unlink()
    elif how == "no tensors":
        tensors.unlink()
    elif how == "empty manifest":
        manifest.write_text("[]")


HURTS = ["truncated", "flipped", "newer", "torn manifest", "no manifest", "no tensors", "empty manifest"]


@pytest.mark.parametrize("how", HURTS)
def test_a_damaged_checkpoint_is_passed_over_with_a_word(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = batches(20)
    expected = state_of(run_plain(good))
    feed(tmp_path, good, 16)
    damage(tmp_path / "snapshots" / "step-00000015", how)
    it = feed(tmp_path, good, 20)
    assert it.began == 10
    assert "step-00000015 cannot be used" in caplog.text
    assert differing(expected, state_of(it)) == []


def test_when_all_are_damaged_the_run_begins_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed(tmp_path, batches(12), 12)
    for name in names(tmp_path):
        damage(tmp_path / "snapshots" / name, "flipped")
    it = feed(tmp_path, batches(12), 12)
    assert it.began == 0
    assert caplog.text.count("cannot be used") == 2
    assert differing(state_of(run_plain(batches(12))), state_of(it)) == []


def test_a_checkpoint_of_another_model_is_not_half_loaded(tmp_path: Path) -> None:
    feed(tmp_path, batches(6), 6)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    before = model.weight.detach().clone()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    with pytest.raises(UsageError, match="of another program: it does not have the same parameters"):
        make_guard(model, optim.AdamW(model.parameters()), loss_fn, run_dir=tmp_path, resume=True)
    assert torch.equal(before, model.weight)


def test_a_step_saved_again_leaves_the_old_one_whole_until_the_new_one_is(tmp_path: Path) -> None:
    it = setup()
    guard = guarded(tmp_path, it)
    for batch in batches(6):
        guard.step(batch)
    store = guard._loop.recovery._store
    first = store.load_newest()
    guard._loop.recovery.save_checkpoint(5, 6)
    assert names(tmp_path) == ["step-00000005", "step-00000005-1"]
    newest = store.load_newest()
    assert newest[2]["batches_seen"] == 6 != first[2]["batches_seen"]
    guard.close()


# -- the last good state when a run halts


@pytest.mark.parametrize("mode", MODES)
def test_a_halted_run_leaves_its_last_good_state_on_disk_and_can_go_on(mode: str, tmp_path: Path) -> None:
    good = batches(16)
    policy = SKIP_ONLY.but(skip_streak_halt=4)
    it = setup()
    guard = guarded(tmp_path, it, policy=policy, settle=mode)
    for batch in good[:7]:
        guard.step(batch)
    with pytest.raises(TrainingHalted) as halted:  # noqa: PT012
        for _ in range(9):
            guard.step(nan_batch())
    assert halted.value.exit_code == 23
    assert guard.summary()["skipped"] == 4
    guard.close()
    assert names(tmp_path)[-1] == "step-00000011"
    again = setup()
    resumed = guarded(tmp_path, again, policy=policy, settle=mode)
    assert resumed.batches_seen == 11
    for batch in good[7:]:
        assert resumed.step(batch).applied
    resumed.close()
    assert differing(state_of(run_plain(good)), state_of(again)) == []


def test_a_disk_that_refuses_a_checkpoint_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    it = feed(tmp_path, batches(12), 12)
    assert it.summary["applied"] == 12
    assert it.summary["guard_faults"] == {"checkpoints": 2}
    assert names(tmp_path) == []
    assert differing(state_of(run_plain(batches(12))), state_of(it)) == []
