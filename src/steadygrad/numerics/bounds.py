"""Bounds on logits and losses: the hard one that many scripts use, and soft ones that keep a gradient.

A clamp is exact inside and has no gradient outside: the very values that need correction teach nothing. And logits
held within +-5 put a floor of about 1.17 under the cross-entropy of a vocabulary of 49,152, however good the model.
`docs/numerics.md` shows what each costs. All of them keep NaN a NaN: a bound repairs a size, not a fault.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..errors import UsageError
from .means import reduction_dtype


def bound_logits(logits: Tensor, limit: float = 30.0, *, hard: bool = False, knee: float | None = None) -> Tensor:
    """The logits held within +-limit.

    `hard=True` clamps. Otherwise a logit within +-knee (half the limit by default) is the same bits as before; beyond,
    it bends towards the limit as limit - (limit - knee)^2 / (|x| + limit - 2 knee). The slope falls with the square of
    the distance and is not cut off, so a logit that is far out is still pulled back.

    Keeps the dtype; bends in float32. Keeps nothing for backward but the logits, and does not sync with the host.
    """
    return _bounded(logits, limit, hard, knee)


def bound_loss(loss: Tensor, limit: float = 100.0, *, hard: bool = False, knee: float | None = None) -> Tensor:
    """A loss held within +-limit, in the same two forms as `bound_logits`.

    With `hard=True` a loss above the limit has no gradient: the batch that needs correction most is the one that is
    left out, and nothing says so. The soft form lowers its weight instead.
    """
    return _bounded(loss, limit, hard, knee)


def soft_cap_logits(logits: Tensor, cap: float = 30.0) -> Tensor:
    """cap * tanh(logits / cap): the smooth cap that some language models are trained with.

    It moves every logit (half a cap becomes 0.46 caps, one cap 0.76) and its slope is zero in float32 from about nine
    caps on. To bound a model that was trained without it, `bound_logits` changes less.
    Keeps the dtype; taken in float32. Does not sync with the host.
    """
    _check(cap, "cap")
    wide = logits.to(reduction_dtype(logits))
    return ((wide / cap).tanh() * cap).to(logits.dtype)


def _bounded(values: Tensor, limit: float, hard: bool, knee: float | None) -> Tensor:
    _check(limit, "limit")
    if hard:
        return values.clamp(-limit, limit)
    knee = limit / 2 if knee is None else knee
    if not 0 <= knee < limit:
        raise UsageError(f"knee={knee} must lie between 0 and the limit {limit}: below it nothing is changed.")
    bent: Tensor = _Bend.apply(values, limit, knee)  # type: ignore[no-untyped-call]
    return bent


def _check(value: float, name: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{name}={value} must be a finite number above zero.")


class _Bend(Function):
    """Identity up to the knee, then limit - room / (1 + (|x| - knee) / room) with room = limit - knee."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, limit: float, knee: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.limit, ctx.knee = limit, knee
        wide = values.to(reduction_dtype(values))
        room = limit - knee
        excess = wide.abs().sub_(knee).div_(room).clamp_(min=0)
        bent = excess.add_(1).reciprocal_().mul_(-room).add_(limit)
        # The sum above may round up past a limit that is no float of this dtype.
        bent = torch.copysign(bent, wide).to(values.dtype).clamp_(-limit, limit)
        # Written so that NaN takes the branch that is a NaN already.
        return torch.where(wide.abs() <= knee, values, bent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        kind = reduction_dtype(values)
        slope = values.to(kind).abs().sub_(ctx.knee).div_(ctx.limit - ctx.knee).clamp_(min=0)
        slope = slope.add_(1).reciprocal_().square_()
        return slope.mul_(grad).to(values.dtype), None, None
