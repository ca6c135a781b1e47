"""Whether the loss is what the gradients descend: only then does a rise of it show that a training goes wrong.

Many healthy trainings follow gradients that are not those of the number they return. Values are learnt from a detached
estimate by the same network, two networks play against each other in one loss, a gradient is turned around or passed
straight through a rounding. There a smaller rate can keep the number low just because less is learnt, so a trial of
rates cannot be judged by it.

The weights are moved a little along a direction and back along it. By how much the loss changes is compared with what
the gradients say. Both agree for the gradients of the loss, and do not where a part of it was held fixed in backward.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from ...state.batch_buffer import BufferedBatch
from ...state.rng import put_rng
from ...step.user_step import PRECISIONS, UserStep

DIRECTIONS = 4
"""Of each kind: along the gradients, with a random sign for each tensor, and at random."""
_SIZES = (1e-3, 1e-2, 1e-1)
"""How far the weights are moved, as a share of their size; the first at which both agree settles it."""
_MAY_DIFFER, _IN_HALF_PRECISION = 0.05, 0.3
"""The share by which they may. In float32 they differ by a thousandth where the gradients are those of the loss."""
_SMALLEST = 0.01
"""The size of a tensor of zeros, as a share of the usual size of all."""
_ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
_OF_FLOAT32 = 1e-6


def descends(program: UserStep, steps: Sequence[Sequence[BufferedBatch]]) -> bool:
    """Whether the gradients of these steps are those of their loss, with the weights of now; False as well where it
    cannot be seen. Moves weights, buffers and random numbers: the caller restores them. Two dozen forward passes."""
    return bool(steps) and all(_Step(program, step).descends() for step in steps)


class _Step:
    """The gradients of one step, and its loss as the weights move."""

    def __init__(self, program: UserStep, batches: Sequence[BufferedBatch]) -> None:
        self._program, self._batches = program, batches
        program.forget()
        self._loss_began = self._loss(backward=True)
        program.unscale()
        weights = [p for p in program.parameters if p.grad is not None]
        self._weights = [_real(p.detach()) for p in weights]
        self._gradients = [_dense(p.grad) for p in weights]
        program.forget()
        self._kept = [weight.clone() for weight in self._weights]
        sizes = [float(w.float().square().mean().sqrt()) if w.numel() else 0.0 for w in self._kept]
        least = _SMALLEST * statistics.fmean(sizes) if sizes else 0.0
        self._sizes = [max(each, least) for each in sizes]
        self._lengths = [float(g.norm()) for g in self._gradients]
        self._usual = math.hypot(*map(math.prod, zip(self._lengths, self._sizes, strict=True)))
        """What a random direction changes, for each share of the weights' size."""
        kinds = {weight.dtype for weight in self._weights} | {PRECISIONS[program.precision]}
        self._rounding = max(_ROUNDING.get(kind, _OF_FLOAT32) for kind in kinds if kind is not None)
        self._may_differ = _MAY_DIFFER if self._rounding == _OF_FLOAT32 else _IN_HALF_PRECISION

    def descends(self) -> bool:
        if not math.isfinite(self._loss_began) or not 0.0 < self._usual < math.inf:
            return False
        for size in _SIZES:
            if self._agree(size, along=True):
                too_small = size * self._usual * self._may_differ < self._rounding * abs(self._loss_began)
                if too_small or self._agree(size, along=False):
                    return True
        return False

    def _agree(self, size: float, *, along: bool) -> bool:
        """Whether what the gradients say of some directions and what is seen differ by a small part of it."""
        said, apart = [], []
        for seed in range(DIRECTIONS):
            said.append(self._move(seed, along, size))
            up = self._loss()
            self._move(seed, along, -size)
            apart.append(said[-1] - (up - self._loss()) / (2 * size))
        for weight, kept in zip(self._weights, self._kept, strict=True):
            weight.copy_(kept)
        return math.hypot(*apart) <= self._may_differ * math.hypot(*said)

    def _move(self, seed: int, along: bool, far: float) -> float:
        """Set the weights so far along a direction; what the gradients say of it. One direction is made at a time and
        tensor by tensor, for there may be little memory left."""
        generator, said = torch.Generator().manual_seed(seed), 0.0
        for place, (weight, gradient) in enumerate(zip(self._weights, self._gradients, strict=True)):
            length, size = self._lengths[place], self._sizes[place]
            if along:
                sign = 1.0 if torch.rand((), generator=generator) < 0.5 else -1.0
                way = gradient * (sign * size * math.sqrt(gradient.numel()) / length if length else 0.0)
            else:
                way = torch.randn(gradient.shape, generator=generator).to(gradient.device) * size
            said += float((gradient * way).sum())
            weight.copy_(self._kept[place] + far * way)
        return said

    def _loss(self, *, backward: bool = False) -> float:
        losses = []
        for each in self._batches:
            if each.rng is not None:
                put_rng(each.rng)
            with torch.enable_grad():
                terms = self._program.micro(each.fetch()) if backward else self._program.forward(each.fetch())
            if terms is None:
                return math.nan
            losses.append(float(terms["loss"].detach()))
        return statistics.fmean(losses)


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values) if values.is_complex() else values


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    values = gradient.detach()
    return _real(values.to_dense() if values.layout is not torch.strided else values).float()
