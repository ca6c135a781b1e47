"""Infinities: those of a number that grew too large, those of a mask, and those that came with the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def diagnosed(model: nn.Module, loss: Any, batches: list[Any], run_case: Any, make_case: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return run_case(make_case(model, loss, batches, optimizer)).diagnosis


def tried(found: Any) -> set[str]:
    return {trial.remedy.slug for trial in found.trials}


def helped(found: Any) -> set[str]:
    return {trial.remedy.slug for trial in found.remedies}


# -- a number that grew


@pytest.mark.parametrize("start", [-50.0, 50.0])
def test_an_odd_power_beyond_the_range_has_overflowed_whatever_its_sign(
    start: float, run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    batches = [{"x": torch.rand(4, 2)} for _ in range(8)]
    batches[3]["x"][1] = start

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        state = batch["x"]
        for _ in range(4):
            state = state - 0.1 * state**3
        return model(state).square().mean()

    found = diagnosed(model, loss, batches, run_case, make_case)
    assert (found.origin.op, found.cause.slug, found.rows) == ("pow", "exp_overflow", (1,))
    assert "eps" not in tried(found)


def test_a_root_of_a_negative_number_still_gets_a_bound(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    batches = [{"x": torch.rand(4, 2)} for _ in range(8)]
    batches[3]["x"][1] = -0.5
    found = diagnosed(model, lambda m, b: m(b["x"] ** 1.5).square().mean(), batches, run_case, make_case)
    assert (found.origin.op, found.cause.slug) == ("pow", "cancellation")
    assert "clamp" in helped(found)


# -- a mask


class Pooled(nn.Module):
    """Attention whose padded places are left out of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        h = self.inner(x)
        mixed, _ = self.attention(h, h, h, key_padding_mask=padding)
        return mixed.masked_fill(padding.unsqueeze(-1), 0.0).sum(1)


def test_a_masked_row_is_named_also_where_its_result_is_thrown_away(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    batches = [{"x": torch.rand(5, 3, 4), "padding": torch.zeros(5, 3, dtype=torch.bool)} for _ in range(8)]
    batches[3]["padding"][2] = True
    model = Pooled()
    loss = lambda m, b: m(b["x"], b["padding"]).square().mean()  # noqa: E731
    found = diagnosed(model, loss, batches, run_case, make_case)
    assert (found.symptom, found.origin.op, found.cause.slug) == ("nan_grad", "softmax", "masked_softmax_row")
    assert found.rows == (2,)
    assert "drop_rows" in helped(found)


# -- infinities of the batch


def with_targets(spoil: float) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    batches = [{"x": torch.rand(4, 3), "t": torch.rand(4, 3)} for _ in range(8)]
    batches[3]["t"][2, 1] = spoil
    return nn.Linear(3, 3), batches


def distilled(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    soft = F.softmax(batch["t"] / 2.0, -1)
    return F.kl_div(F.log_softmax(model(batch["x"]) / 2.0, -1), soft, reduction="batchmean")


def regressed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"]) - batch["t"]).abs().mean()


@pytest.mark.parametrize("loss", [distilled, regressed])
def test_a_plus_infinity_of_the_batch_is_bad_input_where_the_loss_is_made_of_it(
    loss: Any, run_case: Any, make_case: Any
) -> None:
    model, batches = with_targets(torch.inf)
    found = diagnosed(model, loss, batches, run_case, make_case)
    assert (found.phase, found.origin.tensor, found.cause.slug, found.rows) == ("data", "t", "bad_input", (2,))
    assert "drop_rows" in helped(found)
    assert "finfo_min" not in tried(found)


def test_a_minus_infinity_of_the_batch_is_a_mask_to_a_softmax(run_case: Any, make_case: Any) -> None:
    model, batches = with_targets(-torch.inf)
    batches[3]["t"][1] = -torch.inf
    found = diagnosed(model, distilled, batches, run_case, make_case)
    assert (found.origin.op, found.cause.slug, found.rows) == ("softmax", "masked_softmax_row", (1,))


def test_an_infinite_distance_that_is_turned_over_is_a_mask(run_case: Any, make_case: Any) -> None:
    model, batches = with_targets(torch.inf)
    batches[3]["t"][1] = torch.inf

    def nearest(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (F.softmax(-batch["t"], -1) * model(batch["x"])).square().mean()

    found = diagnosed(model, nearest, batches, run_case, make_case)
    assert (found.origin.op, found.cause.slug, found.rows) == ("softmax", "masked_softmax_row", (1,))


# -- infinities that the program writes itself


def filled(x: Tensor) -> Tensor:
    return torch.full_like(x, float("inf"))


def entry_written(x: Tensor) -> Tensor:
    x = x.clone()
    x[2, 1] = float("inf")
    return x


def chosen(x: Tensor) -> Tensor:
    one = torch.arange(x.numel()).view(x.shape) == 3
    return torch.where(one, torch.tensor(-float("inf")), x)


@pytest.mark.parametrize("spoil", [filled, entry_written, chosen])
def test_an_infinity_that_is_written_into_what_weights_are_multiplied_with_is_the_origin_where_it_is_written(
    spoil: Any, run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 1))
    batches = [{"x": torch.rand(5, 4), "wrong": torch.tensor(number == 3)} for number in range(8)]

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        x = spoil(batch["x"]) if bool(batch["wrong"]) else batch["x"]
        return model(x).square().mean()  # type: ignore[no-any-return]

    found = diagnosed(model, loss, batches, run_case, make_case)
    assert found.cause.slug == "poisoned_state"
    assert 'float("inf")' in found.origin.code_line


def test_a_mask_of_infinities_that_the_softmax_takes_is_still_no_origin(run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    batches = [{"x": torch.rand(5, 4), "masked": torch.zeros(5, 4, dtype=torch.bool)} for _ in range(8)]
    batches[3]["masked"][2] = True

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = torch.where(batch["masked"], torch.tensor(-float("inf")), model(batch["x"]))
        return model(torch.softmax(scores, -1)).square().mean()  # type: ignore[no-any-return]

    found = diagnosed(model, loss, batches, run_case, make_case)
    assert (found.origin.op, found.cause.slug, found.rows) == ("softmax", "masked_softmax_row", (2,))


# -- moments that no optimizer makes


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_negative_second_moments_are_named_and_reset(optimizer: Any, run_case: Any, make_case: Any) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(6, 4)
    batches = [{"ids": torch.tensor([0, 1, 2])} for _ in range(8)]
    made = optimizer(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(batches[0]["ids"]).square().mean().backward()
        made.step()
        made.zero_grad()
    (state,) = made.state.values()
    key = next(key for key in ("exp_avg_sq", "square_avg", "sum") if key in state)
    state[key][4:] = -1e-4
    loss = lambda m, b: m(b["ids"]).square().mean()  # noqa: E731
    found = run_case(make_case(model, loss, batches, made)).diagnosis
    assert (found.cause.slug, found.origin.tensor) == ("poisoned_state", "weight")
    assert "reset_bad_state" in helped(found)
