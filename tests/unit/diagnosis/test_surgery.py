"""Changes inside a replay do what the edited program would do, and leave nothing behind."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadygrad.diagnosis.interventions.batch_changes import DropRows, SkipBatch
from steadygrad.diagnosis.interventions.blocked_gradients import KeepGradients, PassChoice
from steadygrad.diagnosis.interventions.call_arguments import CallIntervention, floor_denominator, on_argument
from steadygrad.diagnosis.interventions.module_changes import OpenCheckpoints, UpcastModule
from steadygrad.diagnosis.interventions.optimizer_changes import AddParameters, Options, Warmup
from steadygrad.diagnosis.interventions.precision_changes import Precision, overridden_autocast
from steadygrad.diagnosis.replay.replay_step import replay

NOBODY: frozenset[str] = frozenset()


def regression(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def batch(rows: int = 4) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(rows, 3), "y": torch.randn(rows, 1)}


def line_of(function: Any, text: str) -> tuple[str, int]:
    lines, first = inspect.getsourcelines(function)
    return inspect.getsourcefile(function) or "", first + next(i for i, line in enumerate(lines) if text in line)


def two_divisions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.ones(2) / x
    second = torch.ones(2) / x
    return first, second


def test_an_operation_changes_its_own_line_and_no_other() -> None:
    site = line_of(two_divisions, "first =")
    intervention = CallIntervention(site, "div", on_argument(1, floor_denominator), NOBODY)
    with intervention.around():
        first, second = two_divisions(torch.zeros(2))
    assert bool(torch.isfinite(first).all())
    assert bool(torch.isinf(second).all())
    assert intervention.num_operated == 1


class Rooted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x).sum()


def test_a_checkpoint_that_recomputes_meets_the_changed_line_again() -> None:
    site = line_of(Rooted.forward, "torch.sqrt")
    x = torch.zeros(3, requires_grad=True)
    intervention = CallIntervention(site, "sqrt", on_argument(0, lambda t: t + 1.0), NOBODY)
    with intervention.around():
        checkpoint(Rooted(), x, use_reentrant=True).backward()
    assert intervention.num_operated == 2
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 0.5))


def test_the_operated_gradient_is_that_of_the_edited_line() -> None:
    edited, operated = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    torch.sqrt(edited.clamp_min(1e-6)).sum().backward()
    intervention = CallIntervention(
        line_of(Rooted.forward, "torch.sqrt"), "sqrt", on_argument(0, lambda t: t.clamp_min(1e-6)), NOBODY
    )
    with intervention.around():
        Rooted()(operated).backward()
    assert edited.grad is not None
    assert operated.grad is not None
    assert torch.equal(edited.grad, operated.grad)


def test_autocast_is_overridden_inside_and_untouched_outside() -> None:
    entered = torch.autocast("cpu", dtype=torch.bfloat16)
    a = torch.ones(2, 2)
    with overridden_autocast(torch.float32), entered:
        assert (a @ a).dtype is torch.float32
    with entered:
        assert (a @ a).dtype is torch.bfloat16


def test_precision_restores_the_same_storages() -> None:
    model = nn.Linear(3, 1).half()
    before = [p.data_ptr() for p in model.parameters()]
    values = [p.detach().clone() for p in model.parameters()]
    change = Precision(torch.float64)
    replayable: Any = type("P", (), {"model": model, "optimizers": [torch.optim.SGD(model.parameters())]})()
    change.prepared(replayable)
    assert all(p.dtype is torch.float64 for p in model.parameters())
    change.undo(replayable)
    assert [p.data_ptr() for p in model.parameters()] == before
    assert all(torch.equal(p, v) for p, v in zip(model.parameters(), values, strict=True))


def test_precision_takes_along_the_casts_that_code_spells_out(make_replayable: Any) -> None:
    seen: list[torch.dtype] = []

    def in_half(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = checkpoint(lambda x: model(x.to(torch.float16)), batch["x"], use_reentrant=False)
        scale = torch.full((1,), 2.0, dtype=torch.float16)
        seen.extend([hidden.dtype, scale.dtype, batch["x"].half().dtype, batch["x"].to(torch.int32).dtype])
        return ((hidden * scale).float() - batch["y"]).pow(2).mean()

    replayable = make_replayable(nn.Linear(3, 1).half(), in_half, [batch()])
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        seen.clear()
        change = Precision(dtype)
        try:
            assert replay(replayable, change=change, until="backward").finite
        finally:
            change.undo(replayable)
        assert seen[:4] == [dtype, dtype, dtype, torch.int32]
    seen.clear()
    replay(replayable, until="backward")
    assert seen[:3] == [torch.float16] * 3


def test_an_upcast_module_returns_float32_and_is_itself_again_afterwards(make_replayable: Any) -> None:
    replayable = make_replayable(nn.Sequential(nn.Linear(3, 1)), regression, [batch()], autocast=torch.float16)
    change = UpcastModule("0")
    change.prepared(replayable)
    with torch.autocast("cpu", dtype=torch.float16):
        assert replayable.model(torch.randn(2, 3)).dtype is torch.float32
    change.undo(replayable)
    with torch.autocast("cpu", dtype=torch.float16):
        assert replayable.model(torch.randn(2, 3)).dtype is torch.float16


def test_open_checkpoints_let_gradients_in_and_close_again() -> None:
    block, x = nn.Linear(2, 1), torch.randn(3, 2)
    for reentrant in (True, False):
        block.zero_grad()
        with OpenCheckpoints(reentrant=reentrant).around():
            checkpoint(block, x, use_reentrant=True).sum().backward()
        assert block.weight.grad is not None
        assert float(block.weight.grad.abs().sum()) > 0
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)


def test_missing_parameters_join_the_optimizer_for_the_trial_only(make_replayable: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    replayable = make_replayable(model, regression, [batch()], optimizer=optimizer)
    change = AddParameters(("1.weight", "1.bias"))
    seen = replay(replayable, change=change)
    assert seen.updates["1.weight"] > 0
    change.undo(replayable)
    assert len(optimizer.param_groups) == 1


def test_options_last_through_a_schedule_and_go_away_afterwards(make_replayable: Any) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    replayable = make_replayable(model, regression, [batch()], optimizer=optimizer)
    change = Options(lr=lambda lr: lr * 0.01)
    change.prepared(replayable)
    change.prepared(replayable)
    assert optimizer.param_groups[0]["lr"] == 0.005
    change.undo(replayable)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_skip_refuses_gradients_that_went_bad_after_backward(make_replayable: Any) -> None:
    def spoil(case: Any, _index: int) -> None:
        case.model.weight.grad[0, 0] = float("inf")

    model = nn.Linear(3, 1)
    replayable = make_replayable(model, regression, [batch()], after_backward=spoil)
    before = [p.detach().clone() for p in model.parameters()]
    change = SkipBatch()
    replay(replayable, change=change)
    assert change.num_skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert "step" not in vars(replayable.optimizers[0])


def test_dropped_rows_are_gone_and_the_others_are_as_they_were(make_replayable: Any) -> None:
    data = batch(5)
    replayable = make_replayable(nn.Linear(3, 1), regression, [data])
    kept = DropRows((1, 3)).batch(replayable, data)
    assert torch.equal(kept["x"], data["x"][[0, 2, 4]])


class Muted(nn.Module):
    """Its encoder runs, and something is done to its features, in a scope without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.encoder(x).tanh()
        return self.head(features)


def test_gradients_kept_on_reach_through_the_rest_of_the_scope_and_no_further(make_replayable: Any) -> None:
    replayable = make_replayable(Muted(), regression, [batch()])
    without = replay(replayable, until="backward")
    change = KeepGradients("encoder")
    kept = replay(replayable, change=change, until="backward")
    change.undo(replayable)
    after = replay(replayable, until="backward")
    assert not without.gradients["encoder.weight"].present
    assert kept.gradients["encoder.weight"].norm > 0
    assert kept.loss == without.loss
    assert not after.gradients["encoder.weight"].present
    assert torch.is_grad_enabled()


class Picking(nn.Module):
    """A score that is used only to pick a row of a table, or a column of a one-hot matrix."""

    def __init__(self, *, table: bool) -> None:
        super().__init__()
        self.score, self.table, self.by_table = nn.Linear(3, 5), nn.Embedding(5, 5), table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = self.score(x).argmax(-1)
        picked = self.table(index) if self.by_table else F.one_hot(index, 5).float() @ self.table.weight
        return picked.sum(-1, keepdim=True)


@pytest.mark.parametrize("table", [True, False])
def test_a_choice_passes_the_gradient_and_keeps_its_value(make_replayable: Any, table: bool) -> None:
    replayable = make_replayable(Picking(table=table), regression, [batch()])
    without = replay(replayable, until="backward")
    change = PassChoice(line_of(Picking.forward, "argmax"), "argmax", NOBODY)
    passed = replay(replayable, change=change, until="backward")
    assert not without.gradients["score.weight"].present
    assert passed.gradients["score.weight"].norm > 0
    assert passed.loss == pytest.approx(without.loss, rel=1e-6)
    assert passed.gradients["table.weight"].norm == pytest.approx(without.gradients["table.weight"].norm, rel=1e-5)


def test_a_warm_up_grows_to_the_full_rate_a_schedule_asks_for_and_goes_away_afterwards(make_replayable: Any) -> None:
    model = nn.Linear(3, 1)
    replayable = make_replayable(model, regression, [batch()], optimizer=torch.optim.SGD(model.parameters(), lr=0.4))
    (group,) = replayable.optimizers[0].param_groups
    warmup, rates = Warmup(4), []
    for step in range(6):
        if step == 5:
            group["lr"] = 0.8  # the user's own schedule
        warmup.prepared(replayable)
        rates.append(group["lr"])
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.8])
    warmup.undo(replayable)
    assert group["lr"] == 0.8
