"""A CPU that counts like a device of limited memory: every storage an operation makes, for as long as it is alive.

Past its capacity it raises what a CUDA allocator raises. What `to("cpu")` copies lies on the host, with all that is
computed from it, and is not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steadygrad.diagnosis.isolation import device_memory
from steadygrad.records.rerun_flag import rerunning

_COPIES = (torch.ops.aten._to_copy, torch.ops.aten.to)


class FakeDevice(TorchDispatchMode):
    def __init__(self, capacity: float = float("inf"), *, free_in_reruns: int | None = None) -> None:
        """`free_in_reruns`: bytes that are free when a diagnosis begins; the rest of the time there is enough."""
        super().__init__()
        self.capacity, self.peak, self.peak_in_reruns, self.num_failed = capacity, 0, 0, 0
        self._to_device = False
        self._free_in_reruns = free_in_reruns
        self._alive: dict[int, tuple[Any, int]] = {}
        self._on_host: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if type(leaf) is Tensor and leaf.layout is torch.strided]
        to_host = func.overloadpacket in _COPIES and (kwargs or {}).get("device") is not None
        to_host = to_host or (not self._to_device and bool(given) and all(map(self._lies_on_host, given)))
        made = [leaf for leaf in tree_leaves(out) if type(leaf) is Tensor and leaf.layout is torch.strided]
        size = sum(self._enter(tensor, to_host) for tensor in made)
        if size:
            used = self.used
            if used > self.capacity and (rerunning() or self._free_in_reruns is None):
                self.num_failed += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
            if rerunning():
                self.peak_in_reruns = max(self.peak_in_reruns, used)
            else:
                self.peak = max(self.peak, used)
        return out

    def _lies_on_host(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._on_host

    def _copied_to(self, device: torch.device, tensor: Tensor) -> Tensor:
        self._to_device = True
        try:
            return tensor.clone()
        finally:
            self._to_device = False

    def _enter(self, tensor: Tensor, host: bool) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if host:
            self._on_host[key] = StorageWeakRef(storage)
        if key in self._alive or key in self._on_host:
            return 0
        self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
        return storage.nbytes()

    @property
    def used(self) -> int:
        for book in (self._alive, self._on_host):
            for key in [key for key, entry in book.items() if (entry[0] if book is self._alive else entry).expired()]:
                del book[key]
        return sum(size for _, size in self._alive.values())

    @property
    def spare(self) -> int:
        if self._free_in_reruns is not None and rerunning() and self.capacity == float("inf"):
            self.capacity = self.used + self._free_in_reruns
        return int(min(self.capacity, 1 << 60)) - self.used

    @contextlib.contextmanager
    def in_use(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
        """Programs inside run on it, and a diagnosis asks it."""
        with monkeypatch.context() as patch, self:
            patch.setattr(device_memory, "copied_to", self._copied_to)
            patch.setattr(device_memory, "spare_memory", lambda device: self.spare)
            patch.setattr(device_memory, "taken_by_a_step", lambda device: self.peak - self.used)
            yield self
