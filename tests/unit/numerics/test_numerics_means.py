"""The masked mean: what does not count leaks nowhere, and nothing to average is zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor

from steadygrad.numerics import masked_mean
from steadygrad.numerics.published_findings import Board
from steadygrad.records.errors import UsageError


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_float64(dtype: torch.dtype) -> None:
    values = torch.randn(40, 30).to(dtype)
    mask, weights = torch.rand(40, 1) > 0.3, torch.rand(40, 30)
    assert_agrees(lambda x: masked_mean(x, mask), lambda x: x[mask[:, 0]].mean(), values)
    wide = weights.double()
    assert_agrees(lambda x: masked_mean(x, weights), lambda x: (x * wide).sum() / wide.sum(), values)


def test_gradcheck() -> None:
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True], [False], [True], [True]])
    assert torch.autograd.gradcheck(lambda x: masked_mean(x, mask, dim=0), (values,))


@settings(max_examples=60, deadline=None)
@given(values=matrices(anything), mask=masks())
def test_whatever_is_masked_out_reaches_neither_the_mean_nor_the_gradient(values: Tensor, mask: Tensor) -> None:
    mask = mask[:, None]
    clean = torch.where(mask, values, 1.0)
    mean, slope = gradient(lambda x: masked_mean(x, mask), values)
    wanted, _ = gradient(lambda x: masked_mean(x, mask), clean)
    assert torch.equal(mean, wanted) or (mean.isnan() and wanted.isnan())
    assert torch.equal(slope, torch.where(mask, 1 / max(1, 5 * int(mask.sum())), 0.0).expand(3, 5))


@settings(max_examples=60, deadline=None)
@given(values=matrices(finite), mask=masks())
def test_the_mean_of_finite_values_is_finite(values: Tensor, mask: Tensor) -> None:
    assert masked_mean(values, mask[:, None]).isfinite()


def test_a_bad_value_that_counts_is_never_hidden() -> None:
    for bad in (float("nan"), float("inf")):
        assert not masked_mean(torch.tensor([1.0, bad]), torch.tensor([True, True])).isfinite()


def test_an_empty_mask_is_zero_without_gradient_and_is_counted(board: Board) -> None:
    for values in (torch.ones(3), torch.full((3,), float("nan")), torch.ones(0)):
        mean, slope = gradient(lambda x: masked_mean(x, x.new_zeros(x.shape).bool(), report_to=board), values)
        assert mean == 0
        assert torch.equal(slope, torch.zeros_like(values))
    assert board.counts() == {"empty_mask": 3}


def test_each_empty_row_is_counted_when_averaging_over_rows(board: Board) -> None:
    mask = torch.tensor([[True, True], [False, False], [False, False]])
    assert masked_mean(torch.ones(3, 2), mask, dim=-1, report_to=board).tolist() == [1, 0, 0]
    assert board.counts() == {"empty_mask": 2}


def test_a_denominator_of_the_whole_window_makes_micro_batches_add_up() -> None:
    values = torch.randn(8, 6)
    mask = torch.rand(8, 6) > 0.5
    parts = [masked_mean(v, m, denominator=mask.sum()) for v, m in zip(values.split(2), mask.split(2), strict=True)]
    torch.testing.assert_close(sum(parts), masked_mean(values, mask))
    assert masked_mean(values, mask, denominator=0) == 0


def test_a_scalar_and_no_mask_work() -> None:
    assert masked_mean(torch.tensor(3.0)) == 3
    assert masked_mean(torch.tensor(3.0), torch.tensor(False)) == 0
    torch.testing.assert_close(masked_mean(torch.arange(5.0)), torch.tensor(2.0))


def test_a_mask_that_does_not_fit_says_what_to_pass() -> None:
    with pytest.raises(UsageError, match=r"shape \(2, 3\) .* values of shape \(2, 3, 8\).*mask\[\.\.\., None\]"):
        masked_mean(torch.ones(2, 3, 8), torch.ones(2, 3))


def test_it_compiles_into_one_graph_and_gives_the_same() -> None:
    values, mask = torch.randn(5, 4), torch.rand(5, 4) > 0.5
    compiled = torch.compile(masked_mean, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(values, mask), masked_mean(values, mask))


def test_a_bad_weight_is_never_hidden() -> None:
    assert masked_mean(torch.ones(2), torch.tensor([1.0, float("nan")])).isnan()
    assert masked_mean(torch.ones(2), denominator=float("nan")).isnan()
