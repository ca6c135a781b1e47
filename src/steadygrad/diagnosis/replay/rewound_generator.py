"""States that a generator of the program's had before it drew some numbers, computed from its state after them.

torch's CPU generator is a Mersenne Twister, whose steps can be undone. That a state is the right one is for the caller
to show: the lines that drew must give again, to the bit, what they gave.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SIZE, _MIDDLE, _MATRIX = 624, 397, 0x9908B0DF
_LEFT, _NEXT, _WORDS = 8, 16, 24
"""Where a state holds how many numbers of its block are left, the place of the next one, and the block."""
_MAX_BLOCKS = 64


def drawn_between(before: Tensor, after: Tensor) -> int | None:
    """How many numbers were drawn between two states of one generator; None where that is too many to count."""
    block, first = _read(before)
    last, place = _read(after)
    for blocks in range(_MAX_BLOCKS + 1):
        if block == last:
            return blocks * _SIZE + place - first
        block = _twisted(block)
    return None


def state_before(state: Tensor, drawn: int) -> Tensor:
    """The state so many numbers earlier."""
    block, place = _read(state)
    place -= drawn
    while place <= 0:  # a block of which nothing is drawn is the one before, used up
        block, place = _untwisted(block), place + _SIZE
    raw = bytearray(state.numpy().tobytes())
    raw[_LEFT : _LEFT + 4] = np.int32(_SIZE + 1 - place).tobytes()
    raw[_NEXT : _NEXT + 8] = np.uint64(place).tobytes()
    raw[_WORDS : _WORDS + 8 * _SIZE] = np.array(block, np.uint64).tobytes()
    return torch.frombuffer(raw, dtype=torch.uint8).clone()


def _read(state: Tensor) -> tuple[list[int], int]:
    """The block, and how many of its numbers were drawn. A seeded one that has given none counts as used up."""
    raw = state.numpy().tobytes()
    left = int(np.frombuffer(raw, np.int32, 1, _LEFT)[0])
    block: list[int] = np.frombuffer(raw, np.uint64, _SIZE, _WORDS).tolist()
    return block, _SIZE + 1 - left


def _twisted(block: list[int]) -> list[int]:
    new = list(block)
    for i in range(_SIZE):
        mixed = (new[i] & 0x80000000) | (new[(i + 1) % _SIZE] & 0x7FFFFFFF)
        new[i] = new[(i + _MIDDLE) % _SIZE] ^ (mixed >> 1) ^ (_MATRIX if new[(i + 1) % _SIZE] & 1 else 0)
    return new


def _untwisted(block: list[int]) -> list[int]:
    old = list(block)
    for i in reversed(range(_SIZE)):
        upper = _unmixed(old[i] ^ old[(i + _MIDDLE) % _SIZE])
        lower = _unmixed(old[i - 1] ^ old[(i + _MIDDLE - 1) % _SIZE])
        old[i] = (upper & 0x80000000) | (lower & 0x7FFFFFFF)
    return old


def _unmixed(value: int) -> int:
    return ((value ^ _MATRIX) << 1 | 1) if value & 0x80000000 else value << 1
