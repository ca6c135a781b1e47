"""Pinned host memory in pieces: a GPU copies into it without stopping the host.

Allocating it is what costs: each allocation is a call into the driver that may wait for the device. So it is made in
slabs that double, cut into chunks of one size, and a chunk given back is used again for any tensor that fits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_SMALLEST = 512
_LARGEST_SLAB = 32 << 20
_ARENA_SLAB = 256 << 20
ALIGNED = 512


class PinnedPool:
    """Chunks of pinned memory by size, each a power of two. Chunks that are free are kept for the next tensors, as long
    as all of them take no more than `most` bytes."""

    def __init__(self, most: Callable[[], int] = lambda: sys.maxsize, *, pin: bool = True) -> None:
        self._most = most
        self._pin = pin
        self.bytes = 0
        """What all chunks take, in use or not."""
        self._spare: dict[int, list[Tensor]] = {}
        self._made: dict[int, int] = {}
        self._last: dict[int, tuple[Tensor, Any, Tensor]] = {}

    def like(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A chunk, and a tensor in it with the shape, dtype and, where it has no gaps, layout of this one."""
        chunk = self._take(tensor.numel() * tensor.element_size())
        key = (tensor.shape, tensor.dtype, tensor.stride())
        known = self._last.get(id(chunk))
        if known is not None and known[0] is chunk and known[1] == key:
            return chunk, known[2]
        place = _inside(chunk, tensor)
        self._last[id(chunk)] = (chunk, key, place)
        return chunk, place

    def give_back(self, chunks: Sequence[Tensor]) -> None:
        """These are free again. What a device still has to do with them must be queued before what comes next."""
        for chunk in chunks:
            self._spare.setdefault(chunk.numel(), []).append(chunk)

    def _take(self, size: int) -> Tensor:
        room = max(_SMALLEST, 1 << max(0, size - 1).bit_length())
        waiting = self._spare.setdefault(room, [])
        if not waiting and self.bytes + room > self._most():
            if larger := self._spare.get(2 * room):
                return larger.pop()
            self._drop_spare()
        if not waiting:
            made = self._made.get(room, 0)
            count = max(1, min(made, _LARGEST_SLAB // room, (self._most() - self.bytes) // room))
            self._made[room] = made + count
            self.bytes += count * room
            waiting.extend(torch.empty((count, room), dtype=torch.uint8, pin_memory=self._pin).unbind())
        return waiting.pop()

    def _drop_spare(self) -> None:
        """Let go of all free chunks: none fits what comes. Torch keeps them for whoever asks for their size."""
        for room, chunks in self._spare.items():
            self._made[room] = max(0, self._made.get(room, 0) - len(chunks))
            self.bytes -= room * len(chunks)
            for chunk in chunks:
                self._last.pop(id(chunk), None)
            chunks.clear()


class PinnedArena:
    """Pinned memory for many tensors that are kept together: a few large allocations, filled one behind the other."""

    def __init__(self, expected: int, *, pin: bool = True) -> None:
        self._left = expected
        self._pin = pin
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._filled = 0

    def like(self, tensor: Tensor) -> Tensor:
        """A separate place with the shape, dtype and layout of this tensor."""
        size = tensor.numel() * tensor.element_size()
        room = -(-size // ALIGNED) * ALIGNED
        if self._filled + room > self._slab.numel():
            # Torch rounds what it pins up to a power of two, so ask for one, and for no more than is needed.
            wanted = max(room, min(self._left, _ARENA_SLAB))
            self._slab = torch.empty(1 << max(0, wanted - 1).bit_length(), dtype=torch.uint8, pin_memory=self._pin)
            self._filled = 0
        chunk = self._slab[self._filled : self._filled + room]
        self._filled += room
        self._left = max(0, self._left - room)
        return _inside(chunk, tensor)


def _inside(chunk: Tensor, like: Tensor) -> Tensor:
    flat = chunk[: like.numel() * like.element_size()].view(like.dtype)
    if like.is_contiguous():
        return flat.view(like.shape)
    # As torch lays out a copy of it: channels last stays so, what has gaps becomes contiguous.
    return flat.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
