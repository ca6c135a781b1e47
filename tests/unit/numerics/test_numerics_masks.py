"""Dice and binary cross-entropy for segmentation masks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from steadygrad.numerics import dice_loss, mask_bce_loss
from steadygrad.numerics.published_findings import Board


def plain_dice(logits: Tensor, target: Tensor) -> Tensor:
    p = logits.sigmoid()
    return (1 - (2 * (p * target).sum((-2, -1)) + 1) / (p.sum((-2, -1)) + target.sum((-2, -1)) + 1)).mean()


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_float64(dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 24, 24) * 3).to(dtype)
    target = torch.rand(3, 24, 24) > 0.7
    wide = target.double()
    assert_agrees(lambda x: dice_loss(x, target), lambda x: plain_dice(x, wide), logits)
    mask = torch.rand(3, 24, 24) > 0.5
    assert_agrees(
        lambda x: mask_bce_loss(x, target, mask=mask),
        lambda x: binary_cross_entropy_with_logits(x[mask], wide[mask]),
        logits,
    )


def test_gradcheck() -> None:
    logits = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    target, weights = torch.rand(2, 3, 3) > 0.5, torch.rand(2, 3, 3, dtype=torch.float64)
    weights[0, 0] = 0
    for loss in (dice_loss, mask_bce_loss):
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, target, mask=weights), (logits,))
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, target), (logits,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_target_with_an_empty_prediction_costs_nothing(dtype: torch.dtype) -> None:
    logits, target = torch.full((1, 64, 64), -60.0).to(dtype), torch.zeros(1, 64, 64)
    for smooth in (1.0, 1e-8, 0.0):
        value, slope = gradient(lambda x, s=smooth: dice_loss(x, target, smooth=s), logits)
        assert value.isfinite()
        assert slope.isfinite().all()
    assert float(dice_loss(logits, target)) == pytest.approx(0.0, abs=1e-6)
    gone = torch.full((1, 4, 4), -math.inf).to(dtype)
    assert dice_loss(gone, torch.zeros(1, 4, 4), smooth=0.0) == 0


def test_a_large_picture_in_float16_does_not_overflow() -> None:
    logits, target = torch.full((1, 400, 400), 8.0).half(), torch.ones(1, 400, 400)
    assert logits.sigmoid().sum().isinf()
    assert float(dice_loss(logits, target)) == pytest.approx(0.0, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(logits=matrices(finite, rows=4), target=masks(4))
def test_finite_logits_give_finite_results(logits: Tensor, target: Tensor) -> None:
    wanted = target[:, None].expand(4, 5)
    for loss in (dice_loss, mask_bce_loss):
        value, slope = gradient(lambda x, loss=loss: loss(x, wanted), logits)
        assert value.isfinite()
        assert slope.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(logits=matrices(anything, rows=4), mask=masks(4))
def test_whatever_is_masked_out_leaks_nowhere(logits: Tensor, mask: Tensor) -> None:
    kept = mask[:, None].expand(4, 5)
    target = torch.where(kept, 1.0, math.nan)
    for loss in (dice_loss, mask_bce_loss):
        value, slope = gradient(lambda x, loss=loss: loss(x, target, mask=kept), logits)
        wanted = loss(torch.where(kept, logits, 0.0), torch.ones(4, 5), mask=kept)
        torch.testing.assert_close(value, wanted, equal_nan=True)
        assert not slope[~mask].any()


def test_pictures_with_no_pixel_that_counts_are_left_out_and_none_at_all_is_counted(board: Board) -> None:
    logits, target = torch.randn(2, 3, 3), torch.rand(2, 3, 3) > 0.5
    mask = torch.ones(2, 3, 3, dtype=torch.bool)
    mask[1] = False
    torch.testing.assert_close(dice_loss(logits, target, mask=mask), dice_loss(logits[:1], target[:1]))
    assert dice_loss(logits, target, mask=torch.zeros_like(mask), report_to=board) == 0
    assert mask_bce_loss(logits, target, mask=torch.zeros_like(mask), report_to=board) == 0
    assert board.counts() == {"empty_mask": 2}


def test_a_bad_logit_that_counts_is_never_hidden() -> None:
    logits = torch.zeros(1, 2, 2)
    logits[0, 0, 0] = math.nan
    assert dice_loss(logits, torch.ones(1, 2, 2)).isnan()
    assert mask_bce_loss(logits, torch.ones(1, 2, 2)).isnan()


def test_true_pixels_can_weigh_more() -> None:
    logits, target = torch.randn(2, 4, 4), torch.rand(2, 4, 4) > 0.5
    weight = torch.tensor(3.0)
    torch.testing.assert_close(
        mask_bce_loss(logits, target, pos_weight=weight),
        binary_cross_entropy_with_logits(logits, target.float(), pos_weight=weight),
    )


def test_a_target_of_bools_is_the_target_of_zeros_and_ones() -> None:
    logits = torch.randn(3, 8, 8, dtype=torch.float64)
    target = torch.rand(3, 8, 8) > 0.6
    target[1] = False
    as_bool, slope = gradient(lambda x: dice_loss(x, target), logits)
    as_number, other = gradient(lambda x: dice_loss(x, target.double()), logits)
    torch.testing.assert_close(as_bool, as_number)
    torch.testing.assert_close(slope, other)
