"""Whether a tensor that changed between two updates was changed by a memory fault, or may have been by the program.

A program that writes past autograd's count of writes (`parameter.data`, numpy, another process) leaves no trace but the
values themselves. So a change counts as a fault only if it looks like no program's work: few neighbouring elements,
changed by more than a clamp would, to numbers that no one writes down, and, where several changed, all by the same
bits or to a size the tensor never had. Whatever is in doubt is the program's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WARP = 32
"""A fault reaches at most so many aligned neighbours."""
FAR = 256.0
"""Times the largest value of the tensor: a size that no clamp, mask or average gives."""
SCALED = 1024.0
"""A whole tensor may be multiplied by so much; only a power of two changes the same bits everywhere."""
FEW = 4
"""Of a tensor with so few elements one may be a setting that the program computes."""
_DIGITS = 4
"""A number that a program has written down needs no more decimal digits than this."""
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_LARGEST = frozenset(torch.finfo(dtype).max for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64))
_EXPONENT_BITS = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8, torch.float64: 11}


@dataclass(frozen=True, slots=True)
class BitChange:
    """Which elements changed, counted over the flat tensor, and from what to what."""

    places: tuple[int, ...]
    old: tuple[float, ...]
    new: tuple[float, ...]


@torch.no_grad()
def fault_in(old: Tensor, new: Tensor) -> BitChange | None:
    """What a memory fault changed, of two flat tensors of one floating type; None if the program may have written it.
    Reads the device."""
    if old.dtype not in _EXPONENT_BITS or old.shape != new.shape:
        return None
    whole = _WHOLE[old.element_size()]
    masks = torch.bitwise_xor(old.view(whole), new.view(whole))
    places = masks.nonzero().flatten()
    if not places.numel() or int(places[0]) // WARP != int(places[-1]) // WARP:
        return None
    where: list[int] = places.tolist()
    was, now = old[places].double().tolist(), new[places].double().tolist()
    size = 8 * old.element_size()
    bits = {mask % (1 << size) for mask in masks[places].tolist()}
    change = BitChange(tuple(where), tuple(was), tuple(now))
    if any(_written_down(value, old.dtype) for value in now) or _computed_nan(new.view(whole)[places], old.dtype):
        return None  # what is written as NaN or infinity is refused and rolled back like any other bad value
    limit = FAR * max(float(old.abs().max()), torch.finfo(old.dtype).tiny)
    far = not all(abs(value) <= limit for value in now)
    if size > 16 and far:
        return change
    mantissa = size - 1 - _EXPONENT_BITS[old.dtype]
    if len(where) == 1:
        return change if _one_changed(bits.pop(), was[0], now[0], old.numel(), mantissa) else None
    same = len(bits) == 1 and max(bits).bit_length() > mantissa
    return change if same and (len(where) < old.numel() or not _scaled(was, now)) else None


def _computed_nan(bits: Tensor, dtype: torch.dtype) -> bool:
    """Whether one of them is the NaN that arithmetic gives; a fault gives one with other bits."""
    nan = int(torch.tensor(math.nan, dtype=dtype).view(bits.dtype))
    size = 1 << 8 * dtype.itemsize
    return any(each % size in (nan % size, (nan ^ (size >> 1)) % size) for each in bits.tolist())


def _scaled(old: list[float], new: list[float]) -> bool:
    """Whether a program may have multiplied all of them by one number."""
    factors = {b / a for a, b in zip(old, new, strict=True) if a}
    return len(factors) == 1 and 1 / SCALED <= abs(max(factors)) <= SCALED


def _one_changed(mask: int, old: float, new: float, numel: int, mantissa: int) -> bool:
    """A single element: one bit that matters, or a change by half its size and more."""
    if mask.bit_count() == 1:
        return mask.bit_length() > mantissa - 6 and numel > 1
    factor = abs(new) / abs(old) if old else math.inf
    return mantissa > 16 and numel > FEW and (factor >= 1.5 or factor <= 1 / 1.5 or (new < 0) != (old < 0))


def _written_down(value: float, dtype: torch.dtype) -> bool:
    """Whether a program may have this number in its text: zero, infinity, the largest of a type, few digits."""
    if math.isnan(value):
        return False
    if value == 0.0 or math.isinf(value) or abs(value) in _LARGEST:
        return True
    # In half precision every number has few digits.
    return dtype.itemsize > 2 and float(f"{value:.{_DIGITS - 1}e}") == float(f"{value:.6e}")
