"""Each token's policy loss and KL with their slopes, as `policy.py` defines them: read once, written once."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


class PolicyLimits(NamedTuple):
    low: float
    high: float
    most: float
    """Log-ratios above this go on as a straight line."""
    lowest_logp: float


class Tokens(NamedTuple):
    policy: Tensor
    kl: Tensor | None
    clipped: Tensor
    log_ratio: Tensor
    policy_slope: Tensor
    kl_slope: Tensor | None


def policy_tokens(
    logp: Tensor, old_logp: Tensor, advantage: Tensor, ref_logp: Tensor | None, counts: Tensor, limits: PolicyLimits
) -> Tokens:
    """All of the shape of `logp`, in float32, and zero where a token does not count. `advantage` is one number a token
    or one a sequence."""
    logp, old_logp, counts = logp.contiguous(), old_logp.contiguous(), counts.contiguous()
    by_token = advantage.shape == logp.shape
    advantage = advantage.contiguous() if by_token else advantage.expand(*logp.shape[:-1], 1).contiguous()
    policy, log_ratio, slope = (torch.empty(logp.shape, dtype=torch.float32, device=logp.device) for _ in range(3))
    clipped = torch.empty_like(counts)
    kl = kl_slope = None
    if ref_logp is not None:
        ref_logp, kl, kl_slope = ref_logp.contiguous(), torch.empty_like(policy), torch.empty_like(policy)
    with torch.cuda.device_of(logp):
        _tokens[(triton.cdiv(logp.numel(), _BLOCK),)](
            logp, old_logp, advantage, logp if ref_logp is None else ref_logp, counts,
            policy, policy if kl is None else kl, clipped, log_ratio, slope, slope if kl_slope is None else kl_slope,
            logp.numel(), logp.shape[-1], limits.low, limits.high, limits.most, math.exp(limits.most),
            limits.lowest_logp, BY_TOKEN=by_token, REFERRED=ref_logp is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return Tokens(policy, kl, clipped, log_ratio, slope, kl_slope)


@triton.jit
def _above(x, floor):
    return tl.where(x < floor, floor, x)  # keeps a NaN, which a maximum would hide


@triton.jit
def _below(x, ceiling):
    return tl.where(x > ceiling, ceiling, x)


@triton.jit
def _expm1(x):
    # Four terms beside e^x - 1, which loses its digits near zero.
    series = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120)))))
    return tl.where(tl.abs(x) < 0.05, series, tl.exp(x) - 1)


@triton.jit
def _tokens(
    logps, olds, advantages, refs, counts, policies, kls, clips, log_ratios, slopes, kl_slopes,
    N, T, low, high, most, exp_most, lowest, BY_TOKEN: tl.constexpr, REFERRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    logp = tl.load(logps + at, mask=inside, other=0.0).to(tl.float32)
    now = _above(logp, lowest)
    log_ratio = now - _above(tl.load(olds + at, mask=inside, other=0.0).to(tl.float32), lowest)
    advantage = tl.load(advantages + (at if BY_TOKEN else at // T), mask=inside, other=0.0).to(tl.float32)
    within = tl.exp(_below(log_ratio, most))
    ratio = within * (1 + _above(log_ratio - most, 0.0))
    free, held = ratio * advantage, _below(_above(ratio, low), high) * advantage
    seen = tl.load(counts + at, mask=inside, other=0) != 0
    clipped = (held < free) & seen
    flat = (seen == 0) | (logp <= lowest)
    tl.store(policies + at, tl.where(seen, -tl.where(clipped, held, free), 0.0), mask=inside)
    tl.store(clips + at, clipped, mask=inside)
    tl.store(log_ratios + at, tl.where(seen, log_ratio, 0.0), mask=inside)
    tl.store(slopes + at, tl.where(flat | clipped, 0.0, -within * advantage), mask=inside)
    if REFERRED:
        distance = _above(tl.load(refs + at, mask=inside, other=0.0).to(tl.float32), lowest) - now
        bounded = _below(distance, most)
        less_one = _expm1(bounded)
        kl = less_one + _above(distance - most, 0.0) * exp_most - distance
        series = ((distance / 12 + 1 / 3) * distance + 1) * distance * distance * 0.5
        tl.store(kls + at, tl.where(seen, tl.where(tl.abs(distance) < 1e-2, series, kl), 0.0), mask=inside)
        tl.store(kl_slopes + at, tl.where(flat, 0.0, -less_one), mask=inside)
