"""Bounds in two forms: the clamp as scripts use it, and the one that keeps a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from numerics_cases import DTYPES, HALVES, anything, finite, gradient, matrices
from torch import Tensor
from torch.nn.functional import cross_entropy

from steadygrad.numerics import bound_logits, bound_loss, soft_cap_logits
from steadygrad.records.errors import UsageError


def bent(x: Tensor, limit: float, knee: float) -> Tensor:
    """The definition, in float64."""
    size = x.double().abs()
    beyond = limit - (limit - knee) ** 2 / (size + limit - 2 * knee)
    return torch.where(size <= knee, size, beyond) * x.double().sign()


@pytest.mark.parametrize("limit", [5.0, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_soft_bound_agrees_with_its_definition_in_float64(dtype: torch.dtype, limit: float) -> None:
    x = (torch.randn(4000) * 40).to(dtype)
    torch.testing.assert_close(
        bound_logits(x, limit).double(), bent(x, limit, limit / 2), rtol=2 * torch.finfo(dtype).eps, atol=1e-6
    )


def test_gradcheck() -> None:
    x = (torch.randn(60, dtype=torch.float64) * 60).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bound_logits(x, 30.0), (x,))
    assert torch.autograd.gradcheck(lambda x: bound_logits(x, 30.0, knee=0.0), (x,))
    assert torch.autograd.gradcheck(lambda x: bound_logits(x, 30.0, hard=True), (x,))
    assert torch.autograd.gradcheck(lambda x: soft_cap_logits(x, 30.0), (x,))
    assert torch.autograd.gradcheck(lambda x: bound_loss(x, 6.0), (x.detach()[:1].abs().requires_grad_(),))


@settings(max_examples=80, deadline=None)
@given(x=matrices(anything))
def test_every_bound_holds_and_keeps_a_nan_a_nan(x: Tensor) -> None:
    for dtype in DTYPES:
        given_ = x.to(dtype)
        for made in (bound_logits(given_), bound_logits(given_, hard=True), soft_cap_logits(given_)):
            assert made.dtype == dtype
            assert torch.equal(made.isnan(), given_.isnan())
            assert not (made.abs() > 30).any()


@settings(max_examples=80, deadline=None)
@given(x=matrices(finite))
def test_below_the_knee_every_bit_stays_and_order_is_never_reversed(x: Tensor) -> None:
    for dtype in DTYPES:
        given_ = x.to(dtype).flatten()
        made, slope = gradient(bound_logits, given_)
        inside = given_.abs() <= 15
        assert torch.equal(made[inside].view(torch.uint8), given_[inside].view(torch.uint8))
        torch.testing.assert_close(slope[inside], torch.ones_like(slope[inside]), rtol=0.0, atol=3e-7)
        order = given_.float().argsort()
        assert (made[order].diff() >= 0).all()
        assert slope.isfinite().all()


def test_far_out_the_soft_bound_pulls_back_and_the_clamp_does_not() -> None:
    x = torch.tensor([-1e6, -300.0, 100.0, 6e4])
    _, soft = gradient(bound_logits, x)
    assert (soft > 0).all()
    _, hard = gradient(lambda x: bound_logits(x, hard=True), x)
    assert not hard.any()
    _, capped = gradient(lambda x: soft_cap_logits(x, 30.0), x)
    assert capped[0] == 0
    assert capped[2] > 0


@pytest.mark.parametrize("dtype", HALVES)
def test_the_slope_is_taken_in_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([200.0, -1000.0]).to(dtype)
    _, slope = gradient(bound_logits, x)
    wanted = (15 / (x.double().abs())) ** 2
    torch.testing.assert_close(slope.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=0.0)


def test_an_infinite_loss_is_bounded_with_a_finite_gradient() -> None:
    loss, slope = gradient(lambda x: bound_loss(x, 6.0), torch.tensor(math.inf))
    assert loss == 6
    assert slope == 0


def test_logits_clamped_to_five_put_a_floor_under_the_cross_entropy() -> None:
    vocabulary = 49_152
    logits = torch.full((1, vocabulary), -1e4)
    logits[0, 0] = 1e4
    floor = math.log(1 + (vocabulary - 1) * math.exp(-10))
    hard = cross_entropy(bound_logits(logits, 5.0, hard=True), torch.tensor([0]))
    assert float(hard) == pytest.approx(floor, abs=1e-4)
    assert floor > 1.17


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"limit": 0.0}, "limit=0.0"), ({"limit": math.inf}, "limit=inf"), ({"limit": 5.0, "knee": 3.0}, "knee=3.0")],
)
def test_a_bound_that_cannot_be_is_refused(kwargs: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bound_logits(torch.ones(2), **kwargs)
