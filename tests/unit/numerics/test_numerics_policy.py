"""The policy-gradient loss: it cannot overflow, and nothing divides by zero."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor

from steadygrad.numerics import group_advantages, policy_gradient_loss
from steadygrad.numerics.losses.policy_gradient import bounded_exp, k3
from steadygrad.numerics.published_findings import Board
from steadygrad.records.errors import UsageError


def plain(logp: Tensor, old: Tensor, advantages: Tensor, ref: Tensor, mask: Tensor, average: str) -> Tensor:
    """The textbook form, with a KL weight of 0.04."""
    ratio = (logp - old).exp()
    each = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    each = each + 0.04 * ((ref - logp).exp() - (ref - logp) - 1)
    if average == "token":
        return each[mask].mean()
    return ((each * mask).sum(1) / mask.sum(1)).mean()


@pytest.mark.parametrize("average", ["token", "sequence"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_float64(dtype: torch.dtype, average: str) -> None:
    logp = (-torch.rand(6, 20) * 5).to(dtype)
    old, ref = logp.double() + torch.randn(6, 20) * 0.3, logp.double() + torch.randn(6, 20) * 0.3
    advantages, mask = torch.randn(6).double(), torch.rand(6, 20) > 0.3
    old, ref = old.float().double(), ref.float().double()
    assert_agrees(
        lambda x: policy_gradient_loss(
            x, old.float(), advantages, mask=mask, ref_logp=ref.float(), kl_weight=0.04, average=average  # type: ignore[arg-type]
        ).loss,
        lambda x: plain(x, old, advantages.float().double(), ref, mask, average),
        logp,
    )  # fmt: skip


def test_gradcheck() -> None:
    logp = (-torch.rand(3, 5, dtype=torch.float64) * 3).requires_grad_()
    old, ref = -torch.rand(3, 5, dtype=torch.float64) * 3, -torch.rand(3, 5, dtype=torch.float64) * 3
    old[0, 0], ref[0, 1] = -40.0, 0.0  # far beyond the limit, where the exponential goes on as a line
    advantages = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return policy_gradient_loss(x, old, advantages, ref_logp=ref, kl_weight=0.5, max_log_ratio=2.0).loss

    assert torch.autograd.gradcheck(loss, (logp,))


@settings(max_examples=60, deadline=None)
@given(
    logp=matrices(st.one_of(finite, st.just(-math.inf))),
    old=matrices(st.one_of(finite, st.just(-math.inf))),
    ref=matrices(st.one_of(finite, st.just(-math.inf))),
    mask=masks(),
)
def test_no_log_probability_overflows_it(logp: Tensor, old: Tensor, ref: Tensor, mask: Tensor) -> None:
    logp, old, ref = (values.clamp(max=0.0) for values in (logp, old, ref))
    for advantages in (torch.tensor([1e4, -1e4, 1.0]), torch.zeros(3)):
        value, slope = gradient(
            lambda x, a=advantages: (
                policy_gradient_loss(x, old, a, mask=mask[:, None], ref_logp=ref, kl_weight=1.0).loss
            ),
            logp,
        )
        assert value.isfinite()
        assert slope.isfinite().all()


@settings(max_examples=50, deadline=None)
@given(logp=matrices(anything), mask=masks())
def test_whatever_is_masked_out_leaks_nowhere(logp: Tensor, mask: Tensor) -> None:
    kept = mask[:, None]
    bad = torch.where(kept, -1.0, math.nan).expand(3, 5)
    advantages = torch.where(mask, 1.0, math.nan)
    clean = torch.where(kept, logp, 0.0)
    made = policy_gradient_loss(logp, bad, advantages, mask=kept, ref_logp=bad, kl_weight=1.0)
    wanted = policy_gradient_loss(
        clean, torch.full((3, 5), -1.0), torch.ones(3), mask=kept, ref_logp=torch.full((3, 5), -1.0), kl_weight=1.0
    )
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    _, slope = gradient(lambda x: policy_gradient_loss(x, bad, advantages, mask=kept).loss, logp)
    assert not slope[~mask].any()


def test_the_plain_form_overflows_where_this_one_holds_and_pulls_back() -> None:
    logp, old, advantages = torch.tensor([[-1.0]]), torch.tensor([[-100.0]]), torch.tensor([-1.0])
    assert ((logp - old).exp() * advantages).isinf().all()
    value, slope = gradient(lambda x: policy_gradient_loss(x, old, advantages).loss, logp)
    assert value.isfinite()
    assert slope > 0


def test_an_empty_mask_is_zero_without_gradient_and_is_counted(board: Board) -> None:
    def loss(x: Tensor) -> Tensor:
        nothing = torch.zeros(2, 3, dtype=torch.bool)
        made = policy_gradient_loss(
            x, x.detach(), torch.ones(2), mask=nothing, ref_logp=x.detach(), kl_weight=1.0, report_to=board
        )
        return made.loss

    value, slope = gradient(loss, torch.full((2, 3), math.nan))
    assert value == 0
    assert not slope.any()
    assert board.counts() == {"empty_mask": 1}


def test_the_parts_say_what_was_clipped_and_how_far_the_policy_moved() -> None:
    old = torch.full((1, 4), -2.0)
    logp = old + torch.tensor([[0.0, 1.0, -1.0, 3.0]])
    made = policy_gradient_loss(logp, old, torch.ones(1), ref_logp=old, kl_weight=0.1)
    assert float(made.clipped_share) == 0.5
    assert float(made.largest_log_ratio) == 3.0
    torch.testing.assert_close(made.loss, made.policy + 0.1 * made.kl)
    assert not made.clipped_share.requires_grad


def test_the_continued_exponential_goes_on_as_its_tangent() -> None:
    x = torch.tensor([1.0, 1.9999, 2.0, 2.0001, 3.0, 1e6, 3e38], dtype=torch.float64)
    value = bounded_exp(x, 2.0)
    torch.testing.assert_close(value[:3], x[:3].exp())
    torch.testing.assert_close(value[3:], math.exp(2) * (x[3:] - 1))
    assert (value.diff() > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kl_estimate_keeps_its_digits_near_zero_and_is_never_negative(dtype: torch.dtype) -> None:
    d = torch.cat([torch.logspace(-12, 0, 200), torch.tensor([0.05, 0.0499999])])
    d = torch.cat([d, -d]).to(dtype)
    made = k3(d, 10.0)
    assert (made >= 0).all()
    wide = d.double()
    exact = sum(wide**n / float(math.factorial(n)) for n in range(2, 30))
    torch.testing.assert_close(made.double(), exact, rtol={torch.float32: 2e-5, torch.float64: 1e-11}[dtype], atol=0.0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_advantages_are_the_textbook_ones(dtype: torch.dtype) -> None:
    rewards = torch.randn(12).to(dtype)
    groups = rewards.double().reshape(3, 4)
    gap = groups - groups.mean(1, keepdim=True)
    wanted = (gap / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    torch.testing.assert_close(group_advantages(rewards, 4).double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(group_advantages(rewards, 4, scale=False).double(), gap.flatten(), rtol=1e-5, atol=1e-5)


def test_groups_without_contrast_get_zeros_exactly_and_are_counted(board: Board) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.0])
    made = group_advantages(rewards, 3, report_to=board)
    assert made[:3].tolist() == [0, 0, 0]
    assert (made[3:] != 0).all()
    assert group_advantages(rewards, 1, report_to=board).tolist() == [0.0] * 6
    assert board.counts() == {"constant_group": 7}


def test_a_reward_that_was_not_scored_has_no_advantage_and_spoils_no_other(board: Board) -> None:
    rewards = torch.tensor([1.0, math.nan, 0.0, 2.0, math.nan, math.inf, math.nan, -math.inf])
    made = group_advantages(rewards, 4, report_to=board)
    torch.testing.assert_close(made[[0, 2, 3]], group_advantages(torch.tensor([1.0, 0.0, 2.0]), 3))
    assert made[[1, 4, 5, 6, 7]].tolist() == [0.0] * 5
    assert board.counts() == {"unscored_reward": 5, "constant_group": 1}


@settings(max_examples=60, deadline=None)
@given(rewards=matrices(anything, rows=1, width=6))
def test_advantages_are_finite_whatever_the_rewards(rewards: Tensor) -> None:
    for scale in (True, False):
        assert group_advantages(rewards[0], 3, scale=scale).isfinite().all()


def test_rewards_that_cannot_be_grouped_and_unknown_averages_are_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(7,\) cannot be cut into groups of 4"):
        group_advantages(torch.ones(7), 4)
    with pytest.raises(UsageError, match="'paragraph' is not known"):
        policy_gradient_loss(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), average="paragraph")  # type: ignore[arg-type]
