"""The policy-gradient loss of PPO and GRPO with no place left to overflow or to divide by zero.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import UsageError
from .means import broadcast_mask, mean_and_weight, reduction_dtype
from .notice_board import Board, board

_LOWEST_LOGP = -1e4
"""A token of probability zero has the log-probability -inf, and -inf - -inf is NaN."""


class PolicyLoss(NamedTuple):
    """The loss and its parts. `loss` = `policy` + kl_weight * `kl`; the last two fields carry no gradient."""

    loss: Tensor
    policy: Tensor
    kl: Tensor
    clipped_share: Tensor
    largest_log_ratio: Tensor


def group_advantages(
    rewards: Tensor, group_size: int, *, scale: bool = True, min_std: float = 1e-4, report_to: Board | None = None
) -> Tensor:
    """(reward - mean of its group) / (standard deviation of its group + min_std).

    Rewards of one group stand side by side. A group whose rewards are all alike, or that has one member, gets zeros
    exactly. A reward that is not finite was not scored: its advantage is zero and the others are judged without it.
    Both are counted on the board (`constant_group`, `unscored_reward`). Taken in float32, about the group's mean, so
    large rewards do not cancel. Does not sync with the host.

    Args:
        rewards: (B,), any dtype, B a multiple of group_size.
        scale: False leaves the division out, so that easy and hard groups weigh alike.
    """
    if group_size < 1 or rewards.dim() != 1 or len(rewards) % group_size:
        raise UsageError(
            f"rewards of shape {tuple(rewards.shape)} cannot be cut into groups of {group_size}: pass one number a "
            "completion, the completions of one prompt side by side."
        )
    wide = rewards.to(reduction_dtype(rewards)).reshape(-1, group_size)
    scored = wide.isfinite()
    # In units of the largest one, so that neither differences nor squares overflow.
    largest = torch.where(scored, wide, 0).abs().amax(1, keepdim=True).clamp(min=1)
    unit = torch.where(scored, wide / largest, 0)
    number = scored.sum(1, keepdim=True).clamp(min=1)
    gap = torch.where(scored, unit - unit.sum(1, keepdim=True) / number, 0)
    highest = torch.where(scored, wide, -math.inf).amax(1, keepdim=True)
    alike = (highest == torch.where(scored, wide, math.inf).amin(1, keepdim=True)) | ~scored.any(1, keepdim=True)
    counter = report_to or board()
    counter.count("constant_group", alike)
    counter.count("unscored_reward", ~scored)
    if scale:
        std = gap.square().sum(1, keepdim=True).div(torch.clamp(number - 1, min=1)).sqrt()
        gap = gap / (std + min_std / largest)
    else:
        most = torch.finfo(gap.dtype).max
        gap = (gap * largest).clamp(-most, most)
    return torch.where(alike, 0, gap).reshape(-1)


def policy_gradient_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ref_logp: Tensor | None = None,
    kl_weight: float = 0.0,
    max_log_ratio: float = 10.0,
    average: Literal["token", "sequence"] = "token",
    report_to: Board | None = None,
) -> PolicyLoss:
    """-mean(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)) + kl_weight * mean(KL), with r = exp(logp - old_logp).

    The KL to the reference is k3 = exp(d) - d - 1 with d = ref_logp - logp: never negative. Both exponentials go on
    as straight lines above `max_log_ratio` (a ratio of 22,026 at 10), so finite inputs give a finite loss and finite
    gradients, and a token that is far off is still pulled back. A clamp would give it no gradient.

    Taken in float32. Positions that are masked out may hold anything. An empty mask gives zeros and is counted on the
    board. Does not sync with the host.

    Args:
        logp, old_logp, ref_logp: (B, T) log-probabilities of the tokens that were sampled; only logp gets a gradient.
        advantages: (B,) or (B, T), see `group_advantages`.
        mask: (B, T), true for the tokens of the completion.
        average: over all tokens alike, or over the tokens of each sequence first.
    """
    if average not in ("token", "sequence"):
        raise UsageError(f"average={average!r} is not known: pass 'token' or 'sequence'.")
    kind = reduction_dtype(logp)
    weights = torch.ones_like(logp, dtype=torch.bool) if mask is None else broadcast_mask(mask, logp)
    counts = weights != 0
    now = _logp(logp, counts, kind)
    advantage = advantages[:, None] if advantages.dim() == logp.dim() - 1 else advantages
    advantage = torch.where(counts, advantage.detach().to(kind), 0)

    log_ratio = now - _logp(old_logp.detach(), counts, kind)
    ratio = bounded_exp(log_ratio, max_log_ratio)
    free, held = ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    policy = -_average(torch.minimum(free, held), weights, average)
    (report_to or board()).count("empty_mask", ~counts.any())
    kl = torch.zeros_like(policy)
    if ref_logp is not None:
        distance = _logp(ref_logp.detach(), counts, kind) - now
        kl = _average(k3(distance, max_log_ratio), weights, average)
    with torch.no_grad():
        clipped = mean_and_weight((held < free).to(kind), counts)[0]
        largest = log_ratio.abs().amax() if log_ratio.numel() else log_ratio.new_zeros(())
    return PolicyLoss(policy + kl_weight * kl if kl_weight else policy, policy, kl, clipped, largest)


def bounded_exp(values: Tensor, limit: float) -> Tensor:
    """exp(x) up to the limit and its tangent e^limit (1 + x - limit) beyond: no overflow, a gradient everywhere."""
    over = values > limit
    return torch.where(over, limit, values).exp() * (1 + torch.where(over, values - limit, 0))


def k3(distance: Tensor, limit: float) -> Tensor:
    """exp(d) - d - 1 >= 0, with the exponential continued as in `bounded_exp`, and no cancellation near zero."""
    near = distance.abs() < 0.05
    small = torch.where(near, distance, 0)
    # d^2/2 (1 + d/3 (1 + d/4 (...))): exact to a rounding within +-0.05, where the plain form loses every digit.
    series = torch.ones_like(small)
    for n in range(10, 2, -1):
        series = 1 + small / n * series
    series = small.square() / 2 * series
    far = torch.where(near, 0, distance)
    return torch.where(near, series, bounded_exp(far, limit) - 1 - far)


def _logp(logp: Tensor, counts: Tensor, kind: torch.dtype) -> Tensor:
    return torch.where(counts, logp.to(kind), 0).clamp(min=_LOWEST_LOGP)


def _average(values: Tensor, weights: Tensor, average: str) -> Tensor:
    if average == "token":
        return mean_and_weight(values, weights)[0]
    by_sequence, total = mean_and_weight(values, weights, dim=-1)
    return mean_and_weight(by_sequence, (total > 0)[..., 0])[0]
