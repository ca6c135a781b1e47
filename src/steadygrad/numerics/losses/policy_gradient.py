"""The policy-gradient loss of PPO and GRPO with no place left to overflow or to divide by zero.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...records.errors import UsageError
from ..kernels import fused
from ..masked_means import broadcast_mask, mean_and_weight, mean_of_counted, reduction_dtype
from ..published_findings import Board, board

_LOWEST_LOGP = -1e4
"""A token of probability zero has the log-probability -inf, and -inf - -inf is NaN."""


class PolicyLoss(NamedTuple):
    """The loss and its parts. `loss` = `policy` + kl_weight * `kl`; the last two fields carry no gradient.

    Args:
        loss, policy, kl: scalars.
        clipped_share: the share of tokens whose ratio was clipped.
        largest_log_ratio: the largest |logp - old_logp|.

    Returns:
        A named tuple, as `policy_gradient_loss` returns it.

    Example:
        >>> logp = torch.zeros(1, 2, requires_grad=True)
        >>> found = sg.numerics.policy_gradient_loss(logp, torch.zeros(1, 2), torch.ones(1))
        >>> found.loss.item(), found.clipped_share.item()
        (-1.0, 0.0)
    """

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

    Returns:
        float32 of the shape of the rewards.

    Example:
        >>> sg.numerics.group_advantages(torch.tensor([1.0, 1.0, 0.0, 2.0]), group_size=2, scale=False)
        tensor([ 0.,  0., -1.,  1.])
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

    Taken in float32, once differentiable. Positions that are masked out may hold anything. An empty mask gives zeros
    and is counted on the board. Does not sync with the host.

    Args:
        logp, old_logp, ref_logp: (B, T) log-probabilities of the tokens that were sampled; only logp gets a gradient.
        advantages: (B,) or (B, T), see `group_advantages`.
        mask: (B, T), true for the tokens of the completion.
        average: over all tokens alike, or over the tokens of each sequence first.

    Returns:
        A PolicyLoss: the loss, its two parts, the share of clipped tokens and the largest log ratio.

    Example:
        >>> logp = torch.tensor([[0.0, 500.0]], requires_grad=True)
        >>> found = sg.numerics.policy_gradient_loss(logp, torch.zeros(1, 2), torch.tensor([-1.0]))
        >>> found.loss.backward()
        >>> bool(torch.isfinite(logp.grad).all())
        True
    """
    if average not in ("token", "sequence"):
        raise UsageError(f"average={average!r} is not known: pass 'token' or 'sequence'.")
    kind = reduction_dtype(logp)
    weights = torch.ones_like(logp, dtype=torch.bool) if mask is None else broadcast_mask(mask, logp)
    counts = weights if weights.dtype == torch.bool else weights != 0
    advantage = advantages[:, None] if advantages.dim() == logp.dim() - 1 else advantages
    fixed = old_logp.to(kind), advantage.to(kind), None if ref_logp is None else ref_logp.to(kind)
    policy_T, kl_T, clipped, log_ratio = _PolicyTokens.apply(  # type: ignore[no-untyped-call]
        logp, *fixed, counts, 1 - clip_low, 1 + clip_high, max_log_ratio
    )
    number = counts.sum()
    (report_to or board()).count("empty_mask", number == 0)
    number = number.clamp_(min=1)
    policy = _average(policy_T, weights, number, average)
    kl = torch.zeros_like(policy) if ref_logp is None else _average(kl_T, weights, number, average)
    with torch.no_grad():
        share = clipped.sum() / number
        largest = torch.linalg.vector_norm(log_ratio, ord=math.inf) if log_ratio.numel() else log_ratio.sum()
    loss = torch.add(policy, kl, alpha=kl_weight) if kl_weight else policy
    return PolicyLoss(loss, policy, kl, share, largest)


class _PolicyTokens(Function):
    """Each token's policy loss and KL, with their slopes found on the way: nothing else is kept for backward. All of it
    is zero where a token does not count."""

    @staticmethod
    def forward(
        ctx: Any,
        logp: Tensor,
        old_logp: Tensor,
        advantage: Tensor,
        ref_logp: Tensor | None,
        counts: Tensor,
        low: float,
        high: float,
        limit: float,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        ctx.dtype = logp.dtype
        if fused(logp, old_logp) and (ref_logp is None or fused(ref_logp)):
            from ..kernels.policy_tokens import PolicyLimits, policy_tokens

            tokens = policy_tokens(
                logp, old_logp, advantage, ref_logp, counts, PolicyLimits(low, high, limit, _LOWEST_LOGP)
            )
            ctx.save_for_backward(tokens.policy_slope, tokens.kl_slope)
            ctx.mark_non_differentiable(tokens.clipped, tokens.log_ratio)
            return tokens.policy, tokens.kl, tokens.clipped, tokens.log_ratio
        kind = old_logp.dtype
        now = logp.to(kind).clamp(min=_LOWEST_LOGP)
        log_ratio = now - old_logp.clamp(min=_LOWEST_LOGP)
        ratio = bounded_exp(log_ratio, limit)
        free, held = ratio * advantage, ratio.clamp(low, high) * advantage
        unseen = ~counts
        clipped = (held < free).logical_and_(counts)
        policy = torch.minimum(free, held).neg_().masked_fill_(unseen, 0)
        # Above the limit the ratio is a line of slope e^limit; where the clip holds it there is none.
        flat = unseen | (logp <= _LOWEST_LOGP)
        policy_slope = log_ratio.clamp(max=limit).exp_().mul_(advantage).neg_().masked_fill_(flat | clipped, 0)
        kl, kl_slope = None, None
        if ref_logp is not None:
            distance = ref_logp.clamp(min=_LOWEST_LOGP) - now
            kl = k3(distance, limit).masked_fill_(unseen, 0)
            kl_slope = distance.clamp_(max=limit).expm1_().neg_().masked_fill_(flat, 0)
        ctx.save_for_backward(policy_slope, kl_slope)
        log_ratio.masked_fill_(unseen, 0)
        ctx.mark_non_differentiable(clipped, log_ratio)
        return policy, kl, clipped, log_ratio

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, kl_grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        policy_slope, kl_slope = ctx.saved_tensors
        made = policy_slope * grad
        if kl_slope is not None and kl_grad is not None:
            made.addcmul_(kl_slope, kl_grad)
        return made.to(ctx.dtype), *(None,) * 7


def bounded_exp(values: Tensor, limit: float) -> Tensor:
    """exp(x) up to the limit and its tangent e^limit (1 + x - limit) beyond: no overflow, a gradient everywhere."""
    return values.clamp(max=limit).exp() * (1 + (values - limit).clamp(min=0))


def k3(distance: Tensor, limit: float) -> Tensor:
    """exp(d) - d - 1 >= 0, with the exponential continued as in `bounded_exp`, and little cancellation near zero."""
    over = (distance - limit).clamp(min=0)
    made = distance.clamp(max=limit).expm1_().add_(over, alpha=math.exp(limit)).sub_(distance)
    # Near zero the difference above loses its digits. Three terms of d^2/2 + d^3/6 + d^4/24 ... do better up to here.
    reach = 1e-2 if distance.dtype == torch.float32 else 2e-4
    series = (distance / 12 + 1 / 3).mul_(distance).add_(1).mul_(distance).mul_(distance).mul_(0.5)
    return torch.where(distance.abs() < reach, series, made)


def _average(values: Tensor, weights: Tensor, number: Tensor, average: str) -> Tensor:
    if average == "token" and weights.dtype == torch.bool:
        return mean_of_counted(values, number)
    if average == "token":
        return mean_and_weight(values, weights)[0]
    by_sequence, total = mean_and_weight(values, weights, dim=-1)
    return mean_and_weight(by_sequence, (total > 0)[..., 0])[0]
