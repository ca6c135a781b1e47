"""What the guard says of a refused step: the right code, the right tensor, the right term, and numbers that add up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import SKIP_ONLY, batches, differing, make_guard, run_plain, setup, state_of
from torch import Tensor, nn, optim

import steadygrad as sg
from steadygrad.journal import read_events

MODES = ["now", "late"]


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def make(fused: bool = True) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(3)
    model = Three()
    return model, optim.AdamW(model.parameters(), lr=0.01, fused=fused)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def codes(guard: Any, number: int = -1) -> list[str]:
    return [found.code for found in guard.incidents[number].findings]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_finite_gradients_whose_norm_overflows_are_told_from_bad_ones(mode: str, accumulate: int) -> None:
    def steep(model: nn.Module, batch: Tensor) -> Tensor:
        loss = loss_fn(model, batch)
        if float(batch[0, 0]) == 77.0:  # gradients of 1e20 square to more than float32 holds
            loss = loss + (model.head.weight - model.head.weight.detach()).sum() * 1e20  # type: ignore[union-attr,operator]
        return loss

    batch = batches(1)[0].clone()
    batch[0, 0] = 77.0
    model, optimizer = make()
    with make_guard(model, optimizer, steep, settle=mode, max_grad_norm=1.0, accumulate=accumulate) as guard:
        for each in [*batches(2 * accumulate), batch, *batches(accumulate)]:
            guard.step(each)
        found = guard.incidents[0].findings[0]
    assert found.code == "SY104"
    assert found.subject == "head.weight"
    assert "gradients are finite" in found.detail
    assert len(guard.incidents) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_that_is_not_finite_is_not_called_a_norm_overflow(mode: str) -> None:
    model, optimizer = make()
    fire: list[bool] = []
    model.second.weight.register_hook(lambda g: torch.full_like(g, math.inf) if fire else None)  # type: ignore[union-attr]
    with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
        guard.step(batches(1)[0])
        guard.settle()
        fire.append(True)
        guard.step(batches(1)[0])
        assert codes(guard)[0] == "SY103"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n for n, _ in Three().named_parameters()])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_one_tensor_with_a_bad_gradient_is_named(mode: str, name: str, value: float) -> None:
    model, optimizer = make()
    fire: list[bool] = []

    def poison(gradient: Tensor) -> Tensor | None:
        if not fire:
            return None
        bad = gradient.clone()
        bad.view(-1)[0] = value
        return bad

    dict(model.named_parameters())[name].register_hook(poison)
    with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
        for batch in batches(2):
            guard.step(batch)
        guard.settle()
        fire.append(True)
        guard.step(batches(3)[2])
        incident = guard.incidents[0]
    found = incident.findings[0]
    assert (found.code, found.subject) == ("SY103", name)
    assert found.evidence["tensors"] == [name]
    assert incident.symptom == "nan_grad"
    assert name in incident.headline


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("term", ["ce", "kd"])
def test_the_loss_term_that_went_bad_is_named(mode: str, term: str) -> None:
    def two_terms(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        ce = loss_fn(model, batch)
        kd = model(batch[:, :8]).abs().mean() * 0.1
        if float(batch[0, 0]) == 77.0:
            ce, kd = (ce * math.nan, kd) if term == "ce" else (ce, kd * math.nan)
        return {"loss": ce + kd, "ce": ce, "kd": kd}

    batch = batches(1)[0].clone()
    batch[0, 0] = 77.0
    model, optimizer = make()
    with make_guard(model, optimizer, two_terms, settle=mode) as guard:
        outcomes = [guard.step(each) for each in [*batches(2), batch, *batches(1)]]
        found = {f.code: f for f in guard.incidents[0].findings}
        assert found["SY102"].evidence["terms"] in ((term,), [term])
        assert term in found["SY102"].detail
        reading = outcomes[0].reading
        assert reading is not None
        assert set(reading.terms) == {"ce", "kd"}
        assert reading.loss == pytest.approx(reading.terms["ce"] + reading.terms["kd"], rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_term_that_is_not_part_of_the_loss_is_refused_when_it_is_not_finite(mode: str) -> None:
    def with_metric(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        loss = loss_fn(model, batch)
        return {"loss": loss, "metric": loss.detach() * (math.inf if float(batch[0, 0]) == 77.0 else 1.0)}

    batch = batches(1)[0].clone()
    batch[0, 0] = 77.0
    model, optimizer = make()
    with make_guard(model, optimizer, with_metric, settle=mode) as guard:
        assert guard.step(batches(1)[0]).applied
        assert guard.step(batch).skipped
        assert codes(guard) == ["SY102"]


@pytest.mark.parametrize("mode", MODES)
def test_the_batch_itself_is_named_when_it_is_not_finite(mode: str) -> None:
    model, optimizer = make()

    def of_mapping(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["pixels"]) - batch["target"]).pow(2).mean()

    good, bad = batches(2)[0], nan_batch()
    with make_guard(model, optimizer, of_mapping, settle=mode) as guard:
        for batch in (good, bad):
            guard.step({"pixels": batch[:, :8], "target": batch[:, 8:]})
        found = {f.code: f for f in guard.incidents[0].findings}
    assert "pixels" in found["SY108"].detail
    assert "target" not in found["SY108"].detail


# -- the numbers


@pytest.mark.parametrize("mode", MODES)
def test_the_summary_adds_up(mode: str) -> None:
    model, optimizer = make()
    plan = ["good"] * 4 + ["nan"] + ["good"] * 3 + ["nan", "nan"] + ["good"] * 2
    with make_guard(model, optimizer, loss_fn, settle=mode) as guard:
        for number, kind in enumerate(plan):
            guard.step(batches(20)[number] if kind == "good" else nan_batch())
        summary = guard.summary()
    assert summary["steps"] == summary["applied"] + summary["skipped"] == len(plan) == guard.step_number
    assert (summary["applied"], summary["skipped"], summary["overflows"]) == (9, 3, 0)
    assert (summary["first_bad_step"], summary["last_bad_step"]) == (4, 9)
    assert summary["success_rate"] == 9 / 12
    assert summary["incidents"] == len(guard.incidents) == 2
    assert [(i.first_step, i.last_step) for i in guard.incidents] == [(4, 4), (8, 9)]
    assert guard.batches_seen == len(plan)
    assert not summary["halted"]
    assert not summary["standing_down"]
    assert (summary["lr_factor"], summary["clip_factor"]) == (1.0, 1.0)


# -- promises


def test_an_outcome_is_unsettled_until_it_is_read() -> None:
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, settle="late") as guard:
        first = guard.step(batches(1)[0])
        assert not first.settled
        assert "in flight" in repr(first)
        second = guard.step(nan_batch())
        assert first.settled  # the next commit settled it
        assert not second.settled
        assert second.skipped  # reading waits for the answer
        assert second.settled
        assert "skipped" in repr(second)
        assert math.isnan(second.loss)  # type: ignore[arg-type]
        third = guard.step(batches(1)[0])
        assert not third.settled
        assert third.grad_norm is not None
        assert third.grad_norm > 0
        assert third.applied


def test_an_outcome_of_the_immediate_kind_is_settled_at_once() -> None:
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, settle="now") as guard:
        outcome = guard.step(batches(1)[0])
        assert outcome.settled
        assert outcome.applied


def test_an_outcome_read_inside_the_next_loss_fn_does_not_lie() -> None:
    """There it cannot be settled; it must still be right when it is read again afterwards."""
    model, optimizer = make()
    seen: list[Any] = []

    def nosy(model: nn.Module, batch: Tensor) -> Tensor:
        if seen:
            seen[-1].settled  # noqa: B018
            seen[-1].applied  # noqa: B018
        return loss_fn(model, batch)

    with make_guard(model, optimizer, nosy, settle="late") as guard:
        seen.append(guard.step(batches(1)[0]))
        seen.append(guard.step(batches(1)[0]))
    assert seen[0].applied
    assert seen[1].applied


@pytest.mark.parametrize("window", [1, 3])
def test_an_accumulating_outcome_is_neither_applied_nor_skipped(window: int) -> None:
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, accumulate=window, settle="late") as guard:
        outcomes = [guard.step(batch) for batch in batches(window)]
    assert [o.accumulating for o in outcomes] == [True] * (window - 1) + [False]
    assert [o.applied for o in outcomes] == [False] * (window - 1) + [True]
    assert not any(o.skipped for o in outcomes)


@pytest.mark.parametrize("left", [0, 2])
def test_micro_batches_that_are_left_when_the_guard_is_closed_are_told(
    left: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = make()
    with make_guard(model, optimizer, loss_fn, accumulate=3) as guard:
        for batch in batches(6 + left):
            guard.step(batch)
    assert guard.summary()["applied"] == 2
    told = "2 of 3 micro-batches of an update were there when the guard was closed; that update was not made"
    assert (told in caplog.text) is (left > 0)


# -- observing


@pytest.mark.parametrize("mode", MODES)
def test_observing_changes_nothing_even_when_everything_turns_nan(mode: str) -> None:
    data = batches(12)
    mixed = [*data[:5], nan_batch(), *data[5:]]
    plain = state_of(run_plain(mixed))
    assert any(v.isnan().any() for v in plain.values() if isinstance(v, Tensor) and v.is_floating_point())
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       policy="observe", settle=mode)  # fmt: skip
    with guard:
        for batch in mixed:
            guard.step(batch)
        summary = guard.summary()
    assert differing(plain, state_of(it)) == []
    assert (summary["applied"], summary["skipped"]) == (13, 0)
    assert summary["first_bad_step"] == 5
    assert summary["guard_faults"] == {}


# -- others who look at the model between steps


@pytest.mark.parametrize("look", ["forward", "state_dict", "optimizer"])
def test_whoever_looks_between_steps_sees_clean_state(look: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    guard = make_guard(model, optimizer, loss_fn, settle="late")
    guard.step(nan_batch())
    assert guard._loop.pending is not None
    if look == "forward":
        model.eval()
        with torch.no_grad():
            assert model(batches(1)[0][:, :8]).isfinite().all()
        model.train()
    elif look == "state_dict":
        assert all(v.isfinite().all() for v in model.state_dict().values())
        assert int(model.state_dict()["1.num_batches_tracked"]) == 0
    else:
        held = optimizer.state_dict()["state"].values()
        assert all(v is None or not isinstance(v, Tensor) for each in held for v in each.values())
    assert guard._loop.pending is None
    guard.close()


def test_an_evaluation_in_the_middle_of_a_window_sees_no_bad_micro_batch() -> None:
    data = batches(8)
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 1))
    guard = make_guard(model, optim.AdamW(model.parameters(), fused=True), loss_fn, settle="late", accumulate=3)
    guard.step(data[0])
    guard.step(nan_batch())
    model.eval()
    with torch.no_grad():
        assert model(data[1][:, :8]).isfinite().all()
    model.train()
    for batch in data[1:3]:
        outcome = guard.step(batch)
    assert outcome.applied
    guard.close()


def test_a_micro_batch_left_out_of_an_unfinished_window_is_an_incident_like_any_other() -> None:
    it = setup()
    good = batches(7)
    with make_guard(it.model, it.optimizer, it.loss_fn, accumulate=4, diagnose="auto") as guard:
        for batch in good[:5]:
            guard.step(batch)
        bad = good[5].clone()
        bad[1, 2] = math.nan
        guard.step(bad)
        (incident,) = guard.incidents  # looking settles, and settling takes it out
        assert (incident.symptom, incident.first_step) == ("nan_loss", 1)
        assert incident.decision is not None
        assert "unfinished window" in incident.decision.reason
        assert incident.diagnosis is not None
        assert incident.diagnosis.rows == (1,)
        guard.step(good[6])
        assert len(guard.incidents) == 1
        assert guard.summary()["guard_faults"] == {}


def test_skip_only_is_what_these_tests_believe_it_is() -> None:
    assert SKIP_ONLY.acts
    assert SKIP_ONLY.escalation == ()


def test_a_weight_that_nothing_reads_does_not_turn_bad_in_silence(tmp_path: Path) -> None:
    """Neither loss nor gradient shows it: the look at a share of the weights after every update does."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    guard = sg.Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: model(batch)[:, 1].pow(2).mean(),
        run_dir=tmp_path / "run",
        policy=sg.Policy.named("balanced").but(snapshot_every=5),
    )
    for index in range(12):
        if index == 7:
            with torch.no_grad():
                model.weight[0, 0] = math.nan
        guard.step(torch.randn(3, 4))
    guard.close()
    (incident,) = guard.incidents
    assert incident.symptom == "nan_param"
    assert 7 <= incident.first_step <= 8
    assert bool(model.weight.isfinite().all())


class Logging(nn.Module):
    """Keeps figures in buffers that nothing reads: one is NaN until its first value, one is so for one step only."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.calls, self.breaks = 0, breaks
        self.register_buffer("never", torch.tensor(math.nan))
        self.register_buffer("ratio", torch.tensor(1.0))
        self.register_buffer("average", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.ratio.fill_(math.nan if self.calls == 10 else 1.0)  # just before a snapshot
        self.average.lerp_(torch.tensor(math.nan if self.breaks and self.calls == 7 else 1.0), 0.5)
        return self.layer(x)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_buffer_is_reported_if_it_turned_bad_and_stays_so(breaks: bool) -> None:
    torch.manual_seed(0)
    model = Logging(breaks=breaks)
    with sg.Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: model(batch).pow(2).mean(),
        policy=sg.Policy.named("balanced").but(snapshot_every=5),
        diagnose="off",
    ) as guard:
        for _ in range(24):
            guard.step(torch.randn(3, 4))
    found = [(finding.code, finding.subject) for finding in guard.vitals if finding.code.startswith("SY10")]
    assert found == ([("SY107", "average")] if breaks else [])


def test_a_mask_buffer_that_is_infinite_on_purpose_is_no_finding(tmp_path: Path) -> None:
    """An additive causal mask of -inf is healthy: snapshots hold, checkpoints are written, a skip stays a skip."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(4, 4)
            self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.project(x)[:, None, :] + self.mask, -1).mean(1)

    torch.manual_seed(0)
    model = Masked()
    guard = sg.Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: model(batch).pow(2).mean(),
        run_dir=tmp_path / "run",
        checkpoint_every=4,
        policy=sg.Policy.named("balanced").but(snapshot_every=4),
        diagnose="off",
    )
    for index in range(10):
        guard.step(torch.full((3, 4), math.nan) if index == 6 else torch.randn(3, 4))
    guard.close()
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["rolled_back"] == 0
    assert sorted(path.name for path in (tmp_path / "run" / "snapshots").iterdir()) == [
        "step-00000004",
        "step-00000008",
    ]
    assert [event for event in read_events(tmp_path / "run") if event.kind == "state_not_finite"] == []
