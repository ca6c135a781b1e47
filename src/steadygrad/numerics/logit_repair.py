"""Rows of logits that cannot be sampled from, and what can be made of them. Shapes: R rows, V vocabulary."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Damage(NamedTuple):
    """What was wrong, as plain numbers."""

    num_nan: int
    num_inf: int
    num_rows: int
    num_stuck: int
    num_bounded: int
    highest: float
    lowest: float


def within(scores_RV: Tensor, limit: float) -> bool:
    """Whether every row can be sampled from and every token that is allowed lies within +-limit. One host read, two
    where tokens are forbidden; two passes over the scores."""
    highest, lowest = scores_RV.amax(-1), scores_RV.amin(-1)
    # A NaN fails every comparison, so it is found without being looked for.
    if bool(((highest <= limit) & (lowest >= -limit)).all()):
        return True
    if not bool(((highest <= limit) & (highest >= -limit)).all()):
        return False
    # Neither NaN nor +inf is left by now, so this takes forbidden tokens out of the way, and nothing else.
    return bool((scores_RV.nan_to_num(neginf=0.0).amin(-1) >= -limit).all())


def repaired(
    scores_RV: Tensor, *, limit: float, bound: bool, min_prob: float, floor_all: bool, fallback: int | None
) -> tuple[Tensor, Damage]:
    """The scores with every damaged row made fit to sample from, and what was wrong. Healthy rows keep their bits.

    Forbidden tokens (-inf) stay forbidden. In a row with +inf those tokens share all of the mass; a NaN becomes the
    least likely token; a row of nothing but NaN becomes even. Every repaired row is brought within +-limit, and none of
    its tokens is less likely than `min_prob`. A finite row that reaches beyond the limit is moved back into it if
    `bound`: softmax does not see a shift, so only what is less likely than e^-limit is changed.
    One host read; allocates several float32 tensors of the size of the scores.
    """
    wide = scores_RV.float() if scores_RV.dtype != torch.float64 else scores_RV
    forbidden, nan, positive = wide == -math.inf, wide.isnan(), wide == math.inf
    stuck = forbidden.all(-1)
    damaged = (nan | positive).any(-1)
    finite = wide.isfinite()
    highest = torch.where(finite, wide, -math.inf).amax(-1)
    lowest = torch.where(finite, wide, math.inf).amin(-1)
    beyond = ((highest > limit) | (lowest < -limit)) & ~damaged & ~stuck & bound

    made = _centred(torch.where(finite, wide, -math.inf), highest, positive.any(-1), limit)
    made = torch.where(nan, torch.where(finite.any(-1) | positive.any(-1), -limit, 0.0)[:, None], made)
    made = torch.where(positive, limit, made).masked_fill(forbidden, -math.inf)
    result = torch.where((damaged | beyond)[:, None], made, wide)
    if min_prob > 0:
        floored = result.log_softmax(-1).clamp(min=math.log(min_prob)).masked_fill(forbidden, -math.inf)
        rows = torch.ones_like(damaged) if floor_all else damaged
        result = torch.where((rows & ~stuck)[:, None], floored, result)
    if fallback is not None:
        only = torch.full_like(result, -math.inf)
        only[:, fallback] = 0.0
        result = torch.where(stuck[:, None], only, result)
    numbers = torch.stack([nan.sum(), positive.sum(), damaged.sum(), stuck.sum(), beyond.sum()]).double()
    extremes = torch.stack([highest.max(), lowest.min()]).double()
    counted = torch.cat([numbers, extremes]).tolist()
    return result.to(scores_RV.dtype), Damage(*map(int, counted[:5]), *counted[5:])


def _centred(finite_RV: Tensor, highest: Tensor, outdone: Tensor, limit: float) -> Tensor:
    """Rows shifted to where +-limit costs them least, then held there.

    A row above the limit comes down until its top is at the limit. A row whose normaliser lies below zero comes up
    until that is zero; log-probabilities, as beam search has them, lie there already and are not moved.
    A row that is outdone by an infinity has its top at zero, e^limit below.
    """
    normaliser = finite_RV.logsumexp(-1)
    shift = torch.where(highest > limit, highest - limit, torch.where(normaliser < -1e-3, normaliser, 0.0))
    shift = torch.where(outdone, highest, shift)
    # A row without a finite number has no top: leave it to the caller.
    shift = torch.where(shift.isfinite(), shift, 0.0)
    return (finite_RV - shift[:, None]).clamp(-limit, limit)
