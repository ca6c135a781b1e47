"""A value with several uses is bounded once before all of them; a loss out of proportion is no cure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.remedies.arithmetic.bounded_before_use import shared_value
from steadygrad.diagnosis.remedies.suggested_line import with_floor
from steadygrad.records import Diagnosis, Trial


class Raw(nn.Module):
    """A variance without bounds: below zero for most rows, as the last layer of a fresh network gives it out."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"] + self.shift


def likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    p = model(batch)
    return (0.5 * torch.log(p) + (batch["y"] - p) ** 2 / (2 * p)).mean()


def entropy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    p = model(batch)
    return -torch.log(p).mean()


def a_batch(*, negative: int, rows: int = 16) -> dict[str, Tensor]:
    x = torch.linspace(0.5, 1.5, rows)
    x[:negative] = -torch.linspace(0.2, 0.9, negative)
    return {"x": x, "y": torch.linspace(-1.0, 1.0, rows)}


def found_in(make_replayable: Any, loss_fn: Any, *, negative: int) -> Diagnosis:
    model = Raw()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [a_batch(negative=0), a_batch(negative=negative), *[a_batch(negative=0) for _ in range(4)]]
    return diagnose(make_replayable(model, loss_fn, batches, 1, optimizer=optimizer))


def of(found: Diagnosis, words: str) -> Trial:
    return next(trial for trial in found.trials if words in trial.remedy.change)


def test_a_negative_variance_is_made_positive_before_all_its_uses_and_not_in_the_logarithm_alone(
    make_replayable: Any,
) -> None:
    found = found_in(make_replayable, likelihood, negative=11)
    best = found.remedies[0]
    assert best.remedy.code_change is not None
    assert best.remedy.code_change.splitlines()[0] == "p = torch.nn.functional.softplus(p) + 1e-06"
    assert "torch.log(p)" in best.remedy.code_change.splitlines()[1]
    assert best.remedy.own_line
    assert not any("under the argument of log" in trial.remedy.change for trial in found.remedies)


def test_a_remedy_whose_loss_is_orders_of_magnitude_away_is_not_verified(make_replayable: Any) -> None:
    trial = of(found_in(make_replayable, likelihood, negative=11), "p bounded below")
    assert (trial.finite, trial.verified) == (True, False)
    assert trial.verdict.startswith("finite, but the loss is ")


def test_a_comparison_says_over_how_many_rows_and_proves_nothing_where_most_are_bad(make_replayable: Any) -> None:
    few = found_in(make_replayable, likelihood, negative=11).remedies[0]
    assert (few.rows_compared, few.num_rows, few.compared_with_most) == (5, 16, False)
    most = found_in(make_replayable, entropy, negative=2).remedies[0]
    assert (most.rows_compared, most.num_rows, most.compared_with_most) == (14, 16, True)


def test_the_logarithm_of_a_negative_number_is_called_that(make_replayable: Any) -> None:
    found = found_in(make_replayable, entropy, negative=2)
    assert found.because == "log of a negative number"


def test_the_line_that_is_suggested_has_the_floor_that_was_tried(make_replayable: Any) -> None:
    floor = of(found_in(make_replayable, entropy, negative=2), "a floor under the argument of log")
    assert floor.remedy.code_change == "return -torch.log(p.clamp_min(1e-06)).mean()"
    assert with_floor("y = torch.log(p)", "log", least=1e-3) == "y = torch.log(p.clamp_min(0.001))"


def test_a_remedy_of_the_cause_comes_before_leaving_something_out(make_replayable: Any) -> None:
    found = found_in(make_replayable, entropy, negative=2)
    kinds = [trial.leaves_out for trial in found.remedies]
    assert kinds == sorted(kinds)
    assert kinds[0] == 0
    assert kinds[-1] == 2


def test_a_name_that_is_used_once_is_bounded_where_it_is_used() -> None:
    line = entropy.__code__.co_firstlineno + 2
    assert shared_value(__file__, line, "log") is None
    shared = shared_value(__file__, likelihood.__code__.co_firstlineno + 2, "log")
    assert shared is not None
    assert (shared.name, shared.divides) == ("p", True)
