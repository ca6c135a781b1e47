"""What each kind of fault does to a tensor. Every one changes one element, or one tensor, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

KINDS = {
    "nan_activation": "one element of one module's output is NaN in a training pass",
    "inf_activation": "one element of one module's output is infinite in a training pass",
    "nan_gradient": "one element of one parameter's gradient is NaN",
    "inf_gradient": "one element of one parameter's gradient is infinite",
    "huge_gradient": "one parameter's gradient is a million times too large, and finite",
    "flipped_weight": "the highest exponent bit of one weight flips before a training pass, and stays flipped",
    "nan_weight": "one weight is NaN before a training pass, and stays so",
    "nan_logits": "one row of the model's output is NaN in a pass without gradients, as `generate` makes them",
}
"""The kinds of faults, and what each does."""

SAMPLING = frozenset({"nan_logits"})
"""Those that strike passes without gradients; the others strike training."""

HUGE = 1e6


def spoilt(value: Tensor, fill: float, draw: Random) -> Tensor:
    """A copy with one element replaced. Allocates."""
    made = value.clone()
    made.view(-1)[draw.randrange(made.numel())] = fill
    return made


def spoilt_row(value: Tensor, fill: float, draw: Random) -> Tensor:
    """A copy with one row of the first dimension replaced."""
    made = value.clone()
    made[draw.randrange(len(made))] = fill
    return made


def spoil_gradient(kind: str, draw: Random) -> Callable[[Tensor], Tensor]:
    """What a hook on a parameter makes of its gradient."""
    if kind == "huge_gradient":
        # Of a float16 gradient it would be infinite, which is another kind.
        return lambda gradient: gradient * min(HUGE, torch.finfo(gradient.dtype).max ** 0.5)
    fill = math.nan if kind == "nan_gradient" else math.inf
    return lambda gradient: spoilt(gradient, fill, draw)


def spoil_weight(kind: str, weight: Tensor, draw: Random) -> None:
    """In place, past autograd, as a memory fault would."""
    with torch.no_grad():
        flat = weight.detach().view(-1)
        place = draw.randrange(flat.numel())
        if kind == "nan_weight":
            flat[place] = math.nan
        else:
            whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
            bits = flat[place : place + 1].view(whole)
            bits ^= 1 << (8 * flat.element_size() - 2)
