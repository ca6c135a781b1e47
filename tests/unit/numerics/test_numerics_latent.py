"""Regression on latents: the zero vector has a loss and a bounded gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor
from torch.nn.functional import cosine_similarity, mse_loss, normalize

from steadygrad.numerics import cosine_loss, latent_mse, normalised_mse, safe_normalise
from steadygrad.numerics.published_findings import Board
from steadygrad.records.errors import UsageError

LOSSES = (cosine_loss, normalised_mse, latent_mse)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.05, 1.0, 300.0])
def test_agrees_with_float64(dtype: torch.dtype, size: float) -> None:
    pred, target = (torch.randn(12, 64) * size).to(dtype), torch.randn(12, 64).to(dtype)
    wide, mask = target.double(), torch.rand(12) > 0.3
    assert_agrees(
        lambda x: cosine_loss(x, target, mask=mask),
        lambda x: (1 - cosine_similarity(x, wide, dim=-1))[mask].mean(),
        pred,
    )
    assert_agrees(
        lambda x: normalised_mse(x, target),
        lambda x: mse_loss(normalize(x, dim=-1), normalize(wide, dim=-1)),
        pred,
    )
    assert_agrees(lambda x: latent_mse(x, target), lambda x: mse_loss(x, wide), pred)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradcheck(loss: object) -> None:
    pred = torch.randn(3, 4, dtype=torch.float64)
    pred[1] *= 1e-5  # shorter than min_norm
    target = torch.randn(3, 4, dtype=torch.float64)
    both = (pred.requires_grad_(), target.requires_grad_())
    assert torch.autograd.gradcheck(loss, both, eps=1e-9, atol=1e-4)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_zero_vector_has_a_finite_loss_and_a_bounded_gradient_that_points_home(
    loss: object, dtype: torch.dtype
) -> None:
    target = torch.randn(1, 8).to(dtype)
    value, slope = gradient(lambda x: loss(x, target), torch.zeros(1, 8, dtype=dtype))  # type: ignore[operator]
    assert value.isfinite()
    assert 0 < slope.norm() <= 1.01e3
    assert (slope * target).sum() < 0
    value, slope = gradient(lambda x: loss(x, torch.zeros_like(x)), torch.zeros(1, 8, dtype=dtype))  # type: ignore[operator]
    assert value.isfinite()
    assert not slope.any()


def test_the_plain_forms_fail_where_these_hold() -> None:
    zero, target = torch.zeros(1, 8), torch.ones(1, 8)
    _, divided = gradient(lambda x: mse_loss(x / x.norm(), target), zero)
    assert divided.isnan().all()
    _, usual = gradient(lambda x: mse_loss(normalize(x, eps=1e-8, dim=-1), target), zero)
    assert usual.abs().max() > 1e7


@settings(max_examples=80, deadline=None)
@given(pred=matrices(finite), target=matrices(finite))
def test_finite_vectors_of_any_size_give_finite_results(pred: Tensor, target: Tensor) -> None:
    for loss in (cosine_loss, normalised_mse):
        value, slope = gradient(lambda x, loss=loss: loss(x, target), pred)
        assert -1e-6 <= value <= 2 + 1e-6
        assert slope.isfinite().all()
        assert slope.abs().max() <= 1e3


@settings(max_examples=50, deadline=None)
@given(pred=matrices(anything), mask=masks())
def test_whatever_is_masked_out_leaks_nowhere(pred: Tensor, mask: Tensor) -> None:
    target = torch.where(mask[:, None], torch.ones(3, 5), math.nan)
    for loss in LOSSES:
        value, slope = gradient(lambda x, loss=loss: loss(x, target, mask=mask), pred)
        clean = torch.where(mask[:, None], pred, 2.0)
        wanted, _ = gradient(lambda x, loss=loss: loss(x, torch.ones(3, 5), mask=mask), clean)
        torch.testing.assert_close(value, wanted, equal_nan=True)
        assert not slope[~mask].any()


def test_a_bad_value_that_counts_is_never_hidden() -> None:
    pred = torch.ones(2, 4)
    pred[0, 0] = math.nan
    for loss in LOSSES:
        assert loss(pred, torch.ones(2, 4)).isnan()


def test_short_vectors_and_empty_masks_are_counted(board: Board) -> None:
    pred = torch.zeros(3, 4)
    pred[0] = 1.0
    cosine_loss(pred, torch.ones(3, 4), report_to=board)
    assert board.counts() == {"zero_vector": 2}
    assert cosine_loss(pred, pred, mask=torch.zeros(3, dtype=torch.bool), report_to=board) == 0
    assert board.counts()["empty_mask"] == 1
    assert board.counts()["zero_vector"] == 2


@pytest.mark.parametrize("size", [1e-30, 1e-2, 1e30, 3e38])
def test_normalising_neither_overflows_nor_vanishes(size: float) -> None:
    made = safe_normalise(torch.tensor([[3.0, 4.0]]) / 4 * size, min_norm=1e-38)
    torch.testing.assert_close(made, torch.tensor([[0.6, 0.8]]))


def test_a_min_norm_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="min_norm=0"):
        safe_normalise(torch.ones(2, 2), min_norm=0.0)
