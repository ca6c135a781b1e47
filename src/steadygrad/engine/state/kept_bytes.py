"""How much memory batches that are kept for later take, and how much they may take.

A batch that the program has dropped and we keep is memory that the program counts on. So everything that keeps batches
keeps at most so many bytes: a fixed number, and less where the host or the device has little left. Memory is counted
by the piece that stays alive: a view keeps all of the tensor that it was cut out of. What a worker of a loader has made
lies in shared memory, of which containers have little, and each piece of it holds a file descriptor: it counts as its
part of what may be kept of either.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import TENSORS, getattr, hasattr, is_tensor, isinstance
from ..record.memory_use import free_device_bytes, free_host_bytes

HOST, DEVICE, _SHARED, _DESCRIPTOR = "host", "device", "shared", "descriptor"
_MOST = {HOST: 256 << 20, DEVICE: 256 << 20}
_LEAST = min(_MOST.values())
_SHARE = {HOST: 16, DEVICE: 32}
"""Of what is free, one part in so many at the most."""
_SHARE_OF_LIMIT = 8
"""Of the shared memory of the machine or container, and of the file descriptors that the process may have, one part in
so many at the most."""
_NO_LIMIT = 1 << 60
_REFRESH_S = 5.0
_YOUNG_S = 10.0
"""So long after the first look the device is asked each time: a program has not yet shown all that it needs of it."""
_MAX_DEPTH, _MAX_LIST, _MAX_VALUES = 6, 32, 256
_NOT_COUNTED = (type(None), int, float, nn.Module, Optimizer, type, type(sys))

Piece = tuple[str, int]
"""Where a piece of memory is, and what tells it from others there."""


def pieces_of(value: Any) -> dict[Piece, int]:
    """The pieces of memory that a batch keeps alive, with their bytes. Tensors, arrays, and what lists, mappings and
    objects hold of them; a long list is estimated by its beginning. Host work of a few microseconds."""
    found: dict[Piece, int] = {}
    _add(value, found, [_MAX_VALUES], _MAX_DEPTH)
    return found


def _add(value: Any, found: dict[Piece, int], left: list[int], depth: int) -> None:
    if type(value) in TENSORS or (type(value) not in (tuple, list, dict) and is_tensor(value)):
        key, found[key] = piece_of(value)
        return
    left[0] -= 1
    if type(value) in (tuple, list, dict):
        _add_all(value.values() if type(value) is dict else value, len(value), found, left, depth)
        return
    if not isinstance(value, _NOT_COUNTED) and left[0] >= 0 and depth >= 0 and not callable(value):
        with suppress(Exception):  # what an object does not show is not counted
            _add_of_a_class(value, found, left, depth)


def _add_of_a_class(value: Any, found: dict[Piece, int], left: list[int], depth: int) -> None:
    if isinstance(value, str | bytes | bytearray):
        found[HOST, id(value)] = len(value)
    elif isinstance(value, Mapping):
        _add_all(value.values(), len(value), found, left, depth)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        _add_all(value, len(value), found, left, depth)
    elif hasattr(type(value), "nbytes"):  # an array of numpy or of a library like it
        base = getattr(value, "base", None)
        found[HOST, id(value if base is None else base)] = max(int(value.nbytes), getattr(base, "nbytes", 0))
    elif isinstance(attributes := getattr(value, "__dict__", None), dict):
        _add_all(attributes.values(), len(attributes), found, left, depth)


def _add_all(values: Iterable[Any], count: int, found: dict[Piece, int], left: list[int], depth: int) -> None:
    if left[0] < 0 or depth < 0:
        return
    before = sum(found.values()) if count > _MAX_LIST else 0
    for item in itertools.islice(values, _MAX_LIST) if count > _MAX_LIST else values:
        if is_tensor(item):
            key, found[key] = piece_of(item)
        else:
            _add(item, found, left, depth - 1)
    if count > _MAX_LIST:
        seen = max(sum(found.values()) - before, sys.getsizeof(0) * _MAX_LIST)
        found[HOST, id(values)] = seen * (count - _MAX_LIST) // _MAX_LIST


def piece_of(tensor: Tensor) -> tuple[Piece, int]:
    """The piece of memory that a tensor lies in, and its bytes."""
    place = HOST if tensor.is_cpu else DEVICE
    try:
        storage = tensor.untyped_storage()
        return (place, storage.data_ptr()), _bytes_of(storage)
    except (RuntimeError, NotImplementedError):  # sparse, or of a kind without storage
        sparse = tensor.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
        number = tensor._nnz() if sparse else tensor.numel()
        return (place, id(tensor)), number * (tensor.element_size() + 16 * sparse)


def _bytes_of(storage: torch.UntypedStorage) -> int:
    """What keeping it counts as: its bytes, or what part it is of the shared memory and the file descriptors."""
    size = storage.nbytes()
    if storage.device.type != "cpu" or not storage.is_shared():
        return size
    part = size * allowed_bytes(HOST) // max(1, allowed_bytes(_SHARED))
    return max(size, part, allowed_bytes(_DESCRIPTOR))


class KeptBytes:
    """What a queue of values keeps alive: each piece once, as long as one of them has it."""

    def __init__(self) -> None:
        self._kept: dict[Piece, tuple[int, int]] = {}
        self.bytes = {HOST: 0, DEVICE: 0}

    def add(self, pieces: Mapping[Piece, int]) -> None:
        for piece, size in pieces.items():
            size, times = self._kept.get(piece, (size, 0))
            self._kept[piece] = (size, times + 1)
            self.bytes[piece[0]] += 0 if times else size

    def remove(self, pieces: Mapping[Piece, int]) -> None:
        for piece in pieces:
            size, times = self._kept.pop(piece)
            if times > 1:
                self._kept[piece] = (size, times - 1)
            else:
                self.bytes[piece[0]] -= size

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = {HOST: 0, DEVICE: 0}

    @property
    def too_many(self) -> bool:
        """Whether it is more than may be kept now."""
        host, device = self.bytes[HOST], self.bytes[DEVICE]
        return (host > 0 and host > allowed_bytes(HOST)) or (device > 0 and device > allowed_bytes(DEVICE))


def fit(values: Iterable[Mapping[Piece, int]]) -> bool:
    """Whether values with these pieces may be kept together."""
    pieces: dict[Piece, int] = {}
    for each in values:
        pieces.update(each)
    used = sum(pieces.values())
    if used <= _LEAST and all(map(used.__le__, map(allowed_bytes, {place for place, _ in pieces}))):
        return True  # all of it would fit into either place
    kept = KeptBytes()
    kept.add(pieces)
    return not kept.too_many


_allowed: dict[str, tuple[float, int]] = {}
_first_look = 0.0


def allowed_bytes(place: str) -> int:
    """How many bytes of batches may be kept on the host or on a device. Looked up every few seconds, and of a device
    each time at first."""
    global _first_look
    now = time.monotonic()
    until, known = _allowed.get(place, (0.0, 0))
    if now >= until or (place == DEVICE and now < _first_look + _YOUNG_S):
        _first_look = _first_look or now
        known = _looked_up(place)
        _allowed[place] = (now + _REFRESH_S, known)
    return known


def _looked_up(place: str) -> int:
    if place == _SHARED:
        return _shared_memory() // _SHARE_OF_LIMIT
    if place == _DESCRIPTOR:
        return allowed_bytes(HOST) * _SHARE_OF_LIMIT // max(1, _descriptors())
    free = free_host_bytes() if place == HOST else free_device_bytes()
    return min(_MOST[place], free // _SHARE[place])


def _shared_memory() -> int:
    """The size of the file system that shared memory lies in; without one, more than any has."""
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return _NO_LIMIT
    return found.f_blocks * found.f_frsize or _NO_LIMIT


def _descriptors() -> int:
    """How many file descriptors the process may have; without a limit, more than any has."""
    try:
        import resource
    except ImportError:  # a system where shared memory holds none
        return _NO_LIMIT
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _NO_LIMIT if limit == resource.RLIM_INFINITY else limit
