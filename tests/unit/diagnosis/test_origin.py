"""The slice from a bad value to its birth, with innocent infinities on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import steadygrad as sg
from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.locate.examine import examine, locate
from steadygrad.diagnosis.replay.guard_step import select_rows
from steadygrad.records import Origin


def origin_of(replayable: Any) -> Origin:
    with replayable.examining():
        origin = locate(examine(replayable))
    assert origin is not None
    return origin


class Masked(nn.Module):
    """Attention scores with an additive mask; `keep` says which keys may be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ x.transpose(1, 2)
        scores = scores.masked_fill(~keep[:, None, :], float("-inf"))
        return torch.softmax(scores, -1) @ x


def masked_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(batch["x"], batch["keep"]).pow(2).mean()


def test_a_fully_masked_row_is_blamed_on_the_softmax_and_not_on_the_mask(make_replayable: Any) -> None:
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1] = False
    origin = origin_of(make_replayable(Masked(), masked_loss, [{"x": torch.randn(3, 5, 4), "keep": keep}]))
    assert (origin.phase, origin.op, origin.module) == ("forward", "softmax", "")


def test_an_overflowed_infinity_is_followed_past_the_op_that_made_it_nan(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        grown = torch.exp(model(batch))
        return (grown - grown).mean()

    model = nn.Linear(2, 1)
    origin = origin_of(make_replayable(model, loss_fn, [torch.full((3, 2), 1e4)]))
    assert (origin.phase, origin.op, origin.module) == ("loss", "exp", None)
    assert origin.code_line == "grown = torch.exp(model(batch))"


@pytest.mark.parametrize(("sign", "guilty"), [(1.0, "softmax"), (-1.0, "log")])
def test_a_log_of_zero_is_a_mask_for_softmax_unless_its_sign_was_turned(
    make_replayable: Any, sign: float, guilty: str
) -> None:
    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        prior = torch.log(batch["p"])
        return torch.softmax(model(batch["x"]) + (prior if sign > 0 else -prior), -1)[:, 0].mean()

    batch = {"x": torch.randn(3, 2), "p": torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.1, 0.9]])}
    assert origin_of(make_replayable(nn.Linear(2, 2), loss_fn, [batch])).op == guilty


def test_an_infinity_in_an_unselected_branch_is_innocent(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = batch["x"]
        chosen = torch.where(x > 0, torch.log(x), torch.zeros_like(x))
        return (model(chosen) / batch["count"]).mean()

    batch = {"x": torch.tensor([[0.0, 1.0], [2.0, 3.0]]), "count": torch.tensor([[1.0], [0.0]])}
    origin = origin_of(make_replayable(nn.Linear(2, 1), loss_fn, [batch]))
    assert origin.op == "div"


def test_a_value_that_turns_bad_in_backward_names_the_forward_op_and_line(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        size = model(batch).pow(2).sum(-1)
        return torch.sqrt(size).mean()

    origin = origin_of(make_replayable(nn.Linear(2, 2, bias=False), loss_fn, [torch.zeros(3, 2)]))
    assert (origin.phase, origin.op) == ("backward", "sqrt")
    assert origin.code_line == "return torch.sqrt(size).mean()"


def test_what_forward_saved_is_innocent_when_the_loss_is_finite(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        x = model(batch).abs() * batch.sign().abs()
        return torch.where(x > 0, torch.exp(100.0 / x), x).clamp(max=1.0).mean()

    origin = origin_of(make_replayable(nn.Linear(2, 2), loss_fn, [torch.tensor([[0.0, 1.0], [1.0, 0.0]])]))
    assert origin.phase == "backward"


def test_a_nan_in_the_batch_is_data_and_names_its_key(make_replayable: Any) -> None:
    batch = {"x": torch.randn(4, 2), "y": torch.tensor([[1.0], [float("nan")], [0.0], [2.0]])}
    replayable = make_replayable(nn.Linear(2, 1), lambda m, b: F.mse_loss(m(b["x"]), b["y"]), [batch])
    origin = origin_of(replayable)
    assert (origin.phase, origin.tensor, origin.op) == ("data", "y", None)


def test_a_bad_moment_is_state_and_names_its_parameter(make_replayable: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"x": torch.randn(4, 2), "y": torch.randn(4, 1)}

    def poison(case: Any, index: int) -> None:
        if index == 1:
            case.optimizer.state[model[1].weight]["exp_avg_sq"][0, 0] = float("nan")

    replayable = make_replayable(
        model, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), [batch] * 3, step=1, optimizer=optimizer, before_step=poison
    )
    origin = origin_of(replayable)
    assert (origin.phase, origin.module, origin.tensor) == ("state", "1", "1.weight")


def test_a_nan_written_into_a_buffer_is_found_though_the_loss_is_finite(make_replayable: Any) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.register_buffer("spread", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.spread.lerp_(x.var(0), 0.1)
            return self.fc(x)

    replayable = make_replayable(Counting(), lambda m, b: m(b).pow(2).mean(), [torch.randn(1, 2)])
    with torch.no_grad():
        origin = origin_of_with_warning(replayable)
    assert (origin.phase, origin.op, origin.module) == ("forward", "var", "")


def origin_of_with_warning(replayable: Any) -> Origin:
    import warnings

    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # torch warns that one element has no variance: that is the case
        return origin_of(replayable)


def test_an_eps_that_vanishes_in_half_precision_is_found_inside_the_optimizer_step(make_replayable: Any) -> None:
    model = nn.Linear(4, 1).half()
    batch = torch.zeros(2, 4, dtype=torch.float16)
    origin = origin_of(make_replayable(model, lambda m, b: m(b).float().pow(2).mean(), [batch]))
    assert (origin.phase, origin.op, origin.module) == ("optimizer", "addcdiv", "")


def test_an_infinity_of_the_batch_in_plain_arithmetic_is_bad_data_and_no_mask(make_replayable: Any) -> None:
    batch = {"mel": torch.randn(7, 4, 3), "length": torch.full((4,), 7), "y": torch.zeros(4, 1)}
    batch["mel"][2, 1] = -torch.inf
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))

    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (model(batch["mel"]).mean(0) - batch["y"]).square().mean()

    replayable = make_replayable(model, loss_fn, [batch], select_rows=select_rows)
    found = diagnose(replayable)
    assert found.phase == "data"
    assert found.cause is not None
    assert found.cause.slug == "bad_input"
    assert found.origin is not None
    assert found.origin.tensor == "mel"
    assert found.rows == (1,)  # time comes first, and the row is found on the second side


def test_the_op_is_caught_in_the_act_in_the_second_micro_batch_too() -> None:
    model = nn.Linear(2, 1)
    batches = [torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]])]

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) * (1.0 / batch[:, 1:])).sum()

    with sg.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, accumulate=2, diagnose="origin"
    ) as guard:
        for batch in batches:
            guard.step(batch)
    found = guard.incidents[0].diagnosis
    assert found is not None
    assert found.origin is not None
    assert found.origin.op == "reciprocal"
    assert found.cause is not None
    assert found.cause.slug == "zero_division"


def test_what_led_up_to_the_origin_is_told_in_order_with_its_sizes(run_case: Any, make_case: Any) -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = self.inner(x) * 30.0
            wider = wide * wide
            out: torch.Tensor = wider.exp()
            return out

    model = Grows()
    nn.init.constant_(model.inner.weight, 0.25)
    nn.init.zeros_(model.inner.bias)
    batches = [{"x": torch.full((3, 4), 0.01)} for _ in range(4)]
    batches[2]["x"][1] = 1.0
    case = make_case(
        model, lambda m, b: m(b["x"]).mean(), batches, torch.optim.SGD(model.parameters(), lr=1e-9)
    )  # fmt: skip
    found = run_case(case).diagnosis
    assert found is not None
    assert found.origin.op == "exp"
    led = [(digest.name.split("  ")[0], round(digest.absmax)) for digest in found.origin.lead_up]
    assert led[-3:] == [("addmm", 1), ("mul", 30), ("mul", 900)]
    assert "inner" in found.origin.lead_up[-3].name
