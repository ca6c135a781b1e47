"""Masked cross-entropy and the z-loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor
from torch.nn.functional import cross_entropy

from steadygrad.numerics import masked_cross_entropy, z_loss
from steadygrad.numerics.published_findings import Board
from steadygrad.records.errors import UsageError

LABELS = torch.tensor([0, 2, 4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("z_weight", [0.0, 1e-2])
def test_agrees_with_float64(dtype: torch.dtype, z_weight: float) -> None:
    logits = (torch.randn(6, 7, 600) * 4).to(dtype)
    labels = torch.randint(0, 600, (6, 7))
    labels[torch.rand(6, 7) < 0.4] = -100

    def reference(x: Tensor) -> Tensor:
        kept = labels != -100
        plain = cross_entropy(x.flatten(0, 1), labels.flatten())
        return plain + z_weight * x.logsumexp(-1)[kept].square().mean()

    assert_agrees(lambda x: masked_cross_entropy(x, labels, z_weight=z_weight), reference, logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck(reduction: str) -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, -100, 4, 0])

    def loss(x: Tensor) -> Tensor:
        return masked_cross_entropy(x, labels, z_weight=0.1, reduction=reduction)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(loss, (logits,))
    assert torch.autograd.gradcheck(lambda x: z_loss(x, mask=labels >= 0), (logits,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_each_reduction_is_torchs_where_that_is_finite(reduction: str) -> None:
    logits, labels = torch.randn(9, 11), torch.randint(0, 11, (9,))
    labels[2] = -100
    ours = masked_cross_entropy(logits, labels, reduction=reduction)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, cross_entropy(logits, labels, reduction=reduction))


def test_weights_weigh() -> None:
    logits, labels, weights = torch.randn(6, 8), torch.randint(0, 8, (6,)), torch.rand(6)
    rows = cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(
        masked_cross_entropy(logits, labels, mask=weights), (rows * weights).sum() / weights.sum()
    )
    torch.testing.assert_close(masked_cross_entropy(logits, labels, mask=weights, reduction="none"), rows * weights)


@settings(max_examples=60, deadline=None)
@given(logits=matrices(anything), mask=masks())
def test_whatever_does_not_count_leaks_nowhere(logits: Tensor, mask: Tensor) -> None:
    labels = torch.where(mask, LABELS, -100)
    clean = torch.where(mask[:, None], logits, 0.0)
    loss, slope = gradient(lambda x: masked_cross_entropy(x, labels), logits)
    wanted, wanted_slope = gradient(lambda x: masked_cross_entropy(x, labels), clean)
    torch.testing.assert_close(loss, wanted, equal_nan=True)
    torch.testing.assert_close(slope, wanted_slope, equal_nan=True)
    assert torch.equal(slope[~mask], torch.zeros(3, 5)[~mask])


@settings(max_examples=60, deadline=None)
@given(logits=matrices(finite), mask=masks())
def test_finite_logits_give_a_finite_loss_and_gradient(logits: Tensor, mask: Tensor) -> None:
    # Kept below the largest float, for the distance of two logits has to be one: log p is that distance.
    logits = logits.clamp(-1e38, 1e38)
    loss, slope = gradient(lambda x: masked_cross_entropy(x, LABELS, mask=mask), logits)
    assert loss.isfinite()
    assert slope.isfinite().all()
    assert slope.abs().max() <= 1


def test_the_plain_form_leaks_what_this_one_does_not() -> None:
    logits = torch.zeros(2, 3)
    logits[1] = math.nan
    labels = torch.tensor([0, -100])
    _, plain = gradient(lambda x: cross_entropy(x, labels), logits)
    assert plain.isnan().any()
    loss, ours = gradient(lambda x: masked_cross_entropy(x, labels), logits)
    assert ours.isfinite().all()
    torch.testing.assert_close(loss, torch.tensor(3.0).log())


def test_a_bad_logit_that_counts_is_never_hidden() -> None:
    logits = torch.zeros(2, 3)
    logits[0, 1] = math.nan
    loss, slope = gradient(lambda x: masked_cross_entropy(x, torch.tensor([0, 1])), logits)
    assert loss.isnan()
    assert slope[0].isnan().all()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_no_label_left_is_zero_without_gradient_and_is_counted(dtype: torch.dtype, board: Board) -> None:
    labels = torch.full((2, 4), -100)
    loss, slope = gradient(lambda x: masked_cross_entropy(x, labels, report_to=board), torch.randn(2, 4, 9).to(dtype))
    assert loss == 0
    assert not slope.any()
    empty, _ = gradient(lambda x: masked_cross_entropy(x, labels[:0], report_to=board), torch.ones(0, 4, 9))
    assert empty == 0
    assert board.counts() == {"empty_mask": 2}


def test_a_masked_vocabulary_is_as_if_those_tokens_were_not_there() -> None:
    logits = torch.randn(4, 6)
    labels = torch.tensor([0, 1, 2, 0])
    masked = logits.clone()
    masked[:, 3:] = -math.inf
    loss, slope = gradient(lambda x: masked_cross_entropy(x, labels), masked)
    wanted, wanted_slope = gradient(lambda x: masked_cross_entropy(x, labels), logits[:, :3])
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(slope, torch.cat([wanted_slope, torch.zeros(4, 3)], 1))


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = torch.randn(10, 12), torch.randint(0, 12, (10,))
    whole = gradient(lambda x: masked_cross_entropy(x, labels, z_weight=0.1), logits)
    monkeypatch.setattr("steadygrad.numerics.row_pieces._PIECE", {"cpu": 36})
    parts = gradient(lambda x: masked_cross_entropy(x, labels, z_weight=0.1), logits)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


def test_shapes_that_do_not_fit_and_unknown_reductions_are_told_apart() -> None:
    with pytest.raises(UsageError, match=r"labels of shape \(2, 3\), not \(6,\)"):
        masked_cross_entropy(torch.ones(2, 3, 4), torch.ones(6, dtype=torch.long))
    with pytest.raises(UsageError, match="'median' is not known"):
        masked_cross_entropy(torch.ones(2, 4), torch.ones(2, dtype=torch.long), reduction="median")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="last dimension over the vocabulary"):
        masked_cross_entropy(torch.ones(2, 0), torch.ones(2, dtype=torch.long))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_z_loss_agrees_with_float64_and_ignores_what_is_masked(dtype: torch.dtype) -> None:
    logits = (torch.randn(12, 300) * 3).to(dtype)
    mask = torch.rand(12) > 0.4
    assert_agrees(lambda x: z_loss(x, mask=mask), lambda x: x[mask].logsumexp(-1).square().mean(), logits)
    poisoned = torch.where(mask[:, None], logits, math.nan)
    torch.testing.assert_close(z_loss(poisoned, mask=mask), z_loss(logits, mask=mask))


def test_the_z_loss_pulls_large_logits_back_where_a_clamp_has_no_gradient() -> None:
    logits = torch.full((1, 4), 80.0)
    _, slope = gradient(z_loss, logits)
    assert (slope > 1).all()
    _, clamped = gradient(lambda x: z_loss(x.clamp(-30, 30)), logits)
    assert not clamped.any()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_it_compiles_and_gives_the_same() -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([1, -100, 3, 0, 6])
    compiled = torch.compile(masked_cross_entropy, fullgraph=True, backend="aot_eager")
    wanted = gradient(lambda x: masked_cross_entropy(x, labels), logits)
    for one, other in zip(gradient(lambda x: compiled(x, labels), logits), wanted, strict=True):
        torch.testing.assert_close(one, other)
