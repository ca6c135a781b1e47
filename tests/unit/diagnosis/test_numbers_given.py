"""A number of the program's own that is NaN or infinite is named where it enters, and a mask is not taken for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.records import rules

CLASS_WEIGHT = torch.tensor([1.0, math.inf])
BAD_AT = 3


def mse(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def plain_number(model: nn.Module, batch: Any) -> Tensor:
    return mse(model, batch) * batch["weight"]  # here


def tensor_made_of_it(model: nn.Module, batch: Any) -> Tensor:
    loss = mse(model, batch)
    return loss + torch.tensor(float(batch["weight"]))  # here


def diagnosed(loss_fn: Callable[[nn.Module, Any], Tensor], weights: list[float]) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sg.Guard(model, optimizer, loss_fn) as guard:
        for weight in weights:
            x = torch.randn(6, 3)
            guard.step({"x": x, "y": x.sum(1, keepdim=True), "weight": weight})
        found = guard.incidents[0].diagnosis
        assert found is not None
        assert found.cause is not None
        return found


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("loss_fn", [plain_number, tensor_made_of_it])
def test_the_line_where_a_bad_number_enters_is_named(loss_fn: Callable[..., Tensor], bad: float) -> None:
    found = diagnosed(loss_fn, [1.0] * BAD_AT + [bad, 1.0])
    assert found.cause.slug == "poisoned_state"
    assert found.origin.code_line.endswith("# here")
    assert not any(trial.remedy.code == "RX133" for trial in found.trials)


def masked(model: nn.Module, batch: Any) -> Tensor:
    scores = model(batch["x"]).squeeze(-1)
    scores = scores + NEVER if not math.isfinite(batch["weight"]) else scores
    return -torch.log_softmax(scores, 0)[0]  # taken


NEVER = torch.tensor([-math.inf, 0.0, 0.0, 0.0, 0.0, 0.0])


def test_a_mask_that_forbids_what_the_loss_asks_for_is_no_bad_number() -> None:
    found = diagnosed(masked, [1.0] * BAD_AT + [math.inf, 1.0])
    assert found.cause.slug == "log_zero"


def test_an_infinite_class_weight_made_before_training_is_named_where_it_is_used() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        side = (batch["y"][:, 0] > 0).long()
        logits = torch.cat([model(batch["x"]), torch.zeros(6, 1)], 1)
        weight = CLASS_WEIGHT if math.isinf(batch["weight"]) else None
        return nn.functional.cross_entropy(logits, side, weight=weight)  # here

    found = diagnosed(loss, [1.0] * BAD_AT + [math.inf, 1.0])
    assert found.cause.slug == "poisoned_state"
    assert found.origin.code_line.endswith("# here")


def test_the_sentence_of_the_cause_says_that_it_is_a_constant() -> None:
    found = diagnosed(plain_number, [1.0] * BAD_AT + [math.inf, 1.0])
    assert found.because == "the program gave mul the constant inf: a plain number that is not finite"
    assert "number of the program" in rules.page("DX403").summary
