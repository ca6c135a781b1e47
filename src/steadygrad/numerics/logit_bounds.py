"""Bounds on logits and losses: the hard one that many scripts use, and soft ones that keep a gradient.

A clamp is exact inside and has no gradient outside: the very values that need correction teach nothing. And logits
held within +-5 put a floor of about 1.17 under the cross-entropy of a vocabulary of 49,152, however good the model.
`docs/numerics.md` shows what each costs. All of them keep NaN a NaN: a bound repairs a size, not a fault.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..records.errors import UsageError
from .kernels import fused
from .masked_means import reduction_dtype
from .row_pieces import columns


def bound_logits(logits: Tensor, limit: float = 30.0, *, hard: bool = False, knee: float | None = None) -> Tensor:
    """The logits held within +-limit.

    `hard=True` clamps. Otherwise a logit within +-knee (half the limit by default) is the same bits as before; beyond,
    it bends towards the limit as limit - (limit - knee)^2 / (|x| + limit - 2 knee). The slope falls with the square of
    the distance and is not cut off, so a logit that is far out is still pulled back.

    Keeps the dtype; bends in float32. Keeps nothing for backward but the logits, and does not sync with the host.

    Args:
        logits: any floating dtype, any shape.
        limit: the largest magnitude that comes out.
        hard: clamp instead of bending.
        knee: below this nothing changes; half the limit by default.

    Returns:
        The same shape and dtype.

    Example:
        >>> sg.numerics.bound_logits(torch.tensor([1.0, 1e6]), limit=30.0).round()
        tensor([ 1., 30.])
    """
    return _bounded(logits, limit, hard, knee)


def bound_loss(loss: Tensor, limit: float = 100.0, *, hard: bool = False, knee: float | None = None) -> Tensor:
    """A loss held within +-limit, in the same two forms as `bound_logits`.

    With `hard=True` a loss above the limit has no gradient: the batch that needs correction most is the one that is
    left out, and nothing says so. The soft form lowers its weight instead.

    Args:
        loss: a scalar, or losses of any shape.
        limit, hard, knee: as for `bound_logits`.

    Returns:
        The same shape and dtype.

    Example:
        >>> float(sg.numerics.bound_loss(torch.tensor(2.5)))
        2.5
    """
    return _bounded(loss, limit, hard, knee)


def soft_cap_logits(logits: Tensor, cap: float = 30.0) -> Tensor:
    """cap * tanh(logits / cap): the smooth cap that some language models are trained with.

    It moves every logit (half a cap becomes 0.46 caps, one cap 0.76) and its slope is zero in float32 from about nine
    caps on. To bound a model that was trained without it, `bound_logits` changes less.
    Keeps the dtype; taken in float32. Does not sync with the host.

    Args:
        logits: any floating dtype, any shape.
        cap: the largest magnitude that comes out.

    Returns:
        The same shape and dtype.

    Example:
        >>> sg.numerics.soft_cap_logits(torch.tensor([0.0, 1e6]), cap=30.0)
        tensor([ 0., 30.])
    """
    _check(cap, "cap")
    return _curved(logits, _Cap(cap))


def _bounded(values: Tensor, limit: float, hard: bool, knee: float | None) -> Tensor:
    _check(limit, "limit")
    if hard:
        return values.clamp(-limit, limit)
    knee = limit / 2 if knee is None else knee
    if not 0 <= knee <= limit / 2:
        raise UsageError(f"knee={knee} must lie between 0 and half the limit {limit}: below it nothing is changed.")
    return _curved(values, _Bend(limit, knee))


def _check(value: float, name: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{name}={value} must be a finite number above zero.")


class _Curve(Protocol):
    """A function of one number and its slope, both over a piece of float32 that they may write into."""

    def value(self, x: Tensor) -> Tensor: ...

    def slope(self, x: Tensor) -> Tensor: ...

    def on_gpu(self, values: Tensor, grad: Tensor | None) -> Tensor:
        """The values of a whole tensor or, with a gradient, the gradient for it."""
        ...


class _Bend:
    """x up to the knee, then limit - rest^2 / (|x| + limit - 2 knee) with rest = limit - knee."""

    def __init__(self, limit: float, knee: float) -> None:
        self.limit, self.knee, self.room = limit, knee, limit - knee

    def value(self, x: Tensor) -> Tensor:
        size = x.abs()
        bent = (size + (self.room - self.knee)).reciprocal_().mul_(-(self.room**2)).add_(self.limit)
        # The smaller of the two is the number itself below the knee, to the bit; a `where` would be many times slower
        # on a CPU. Both keep a NaN.
        return torch.minimum(size, bent.clamp_(min=self.knee)).copysign_(x)

    def slope(self, x: Tensor) -> Tensor:
        return x.abs_().add_(self.room - self.knee).reciprocal_().mul_(self.room).clamp_(max=1).square_()

    def on_gpu(self, values: Tensor, grad: Tensor | None) -> Tensor:
        from .kernels.bound_curves import bend, bend_gradient

        return (
            bend(values, self.limit, self.knee) if grad is None else bend_gradient(values, grad, self.limit, self.knee)
        )


class _Cap:
    """cap * tanh(x / cap)."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def value(self, x: Tensor) -> Tensor:
        return x.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, x: Tensor) -> Tensor:
        return x.div_(self.cap).tanh_().square_().neg_().add_(1)

    def on_gpu(self, values: Tensor, grad: Tensor | None) -> Tensor:
        from .kernels.bound_curves import cap, cap_gradient

        return cap(values, self.cap) if grad is None else cap_gradient(values, grad, self.cap)


def _curved(values: Tensor, curve: _Curve) -> Tensor:
    made: Tensor = _Curved.apply(values, curve)  # type: ignore[no-untyped-call]
    return made


class _Curved(Function):
    """A curve over every number, a piece at a time: no float32 copy of the whole is made."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, curve: _Curve) -> Tensor:
        ctx.save_for_backward(values)
        ctx.curve = curve
        if values.dim() and fused(values):
            return curve.on_gpu(values, None)
        made = torch.empty_like(values, memory_format=torch.contiguous_format)
        flat, into = values.reshape(1, -1), made.view(1, -1)
        for part in columns(flat):
            into[:, part] = curve.value(flat[:, part].to(reduction_dtype(values), copy=True))
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        if values.dim() and fused(values):
            return ctx.curve.on_gpu(values, grad), None
        made = torch.empty_like(values, memory_format=torch.contiguous_format)
        flat, slopes, into = values.reshape(1, -1), grad.reshape(1, -1), made.view(1, -1)
        for part in columns(flat):
            slope = ctx.curve.slope(flat[:, part].to(reduction_dtype(values), copy=True))
            into[:, part] = slope.mul_(slopes[:, part])
        return made, None
