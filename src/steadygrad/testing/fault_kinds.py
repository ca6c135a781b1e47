"""What each kind of fault does to a tensor. Every one changes one element, or one tensor, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    "flipped_bits": "one to four bits of one weight flip before a training pass, any of them, and stay flipped",
    "flipped_warp": "the same bit of 32 neighbouring weights flips before a training pass, and stays flipped",
    "flipped_gradient": "one to four bits of one element of one parameter's gradient flip",
    "nan_weight": "one weight is NaN before a training pass, and stays so",
    "nan_logits": "one row of the model's output is NaN in a pass without gradients, as `generate` makes them",
}
"""The kinds of faults, and what each does."""

SAMPLING = frozenset({"nan_logits"})
"""Those that strike passes without gradients; the others strike training."""

FLIPS = frozenset({"flipped_bits", "flipped_warp", "flipped_gradient"})
"""Those that strike only where they are named: most of them do no harm."""

HUGE = 1e6
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Which bits of a tensor flip: `mask` of the word at `place` and, with `run` 32, of the 32 words aligned with it,
    as a fault in a warp of a GPU does. A place beyond the end counts from the beginning again."""

    place: int
    mask: int
    run: int = 1


def flip_bits(tensor: Tensor, flip: Flip) -> None:
    """In place and past autograd's count of writes, as a memory fault would."""
    with torch.no_grad():
        flat = tensor.data.view(-1)
        size = 8 * flat.element_size()
        mask = flip.mask & ((1 << size) - 1)
        first = flip.place % flat.numel() // flip.run * flip.run
        bits = flat[first : first + flip.run].view(_WHOLE[flat.element_size()])
        bits ^= mask - (1 << size) if mask >> (size - 1) and size > 8 else mask


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


def random_flip(draw: Random, bits: int, *, run: int = 1) -> Flip:
    """Up to four of so many bits; one bit where it is a run of neighbours."""
    mask = 0
    for _ in range(1 if run > 1 else draw.randrange(1, 5)):
        mask |= 1 << draw.randrange(bits)
    return Flip(place=draw.randrange(1 << 30), mask=mask, run=run)


def spoil_gradient(kind: str, draw: Random) -> Callable[[Tensor], Tensor]:
    """What a hook on a parameter makes of its gradient."""
    if kind == "flipped_gradient":

        def flipped(gradient: Tensor) -> Tensor:
            made = gradient.clone(memory_format=torch.contiguous_format)
            flip_bits(made, random_flip(draw, 8 * made.element_size()))
            return made

        return flipped
    if kind == "huge_gradient":
        # Of a float16 gradient it would be infinite, which is another kind.
        return lambda gradient: gradient * min(HUGE, torch.finfo(gradient.dtype).max ** 0.5)
    fill = math.nan if kind == "nan_gradient" else math.inf
    return lambda gradient: spoilt(gradient, fill, draw)


def spoil_weight(kind: str, weight: Tensor, draw: Random) -> None:
    """In place, past autograd, as a memory fault would."""
    if kind in FLIPS:
        flip_bits(weight, random_flip(draw, 8 * weight.element_size(), run=32 if kind == "flipped_warp" else 1))
        return
    place = draw.randrange(weight.numel())
    if kind == "nan_weight":
        weight.data.view(-1)[place] = math.nan
    else:
        flip_bits(weight, Flip(place=place, mask=1 << (8 * weight.element_size() - 2)))
