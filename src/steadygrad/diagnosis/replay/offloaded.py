"""What a forward keeps for backward, on the host until backward asks for it, as far as memory is free there.

The same bits come back, so the step is the same step: it only takes less memory on the device. What lives on anyway
(weights, buffers) and what is small stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import describable, once
from ..isolation import device_memory as memory
from ..trace.trace_log import Standing
from ..trace.tracer import Tracer, own_work

SMALL = 1 << 16
"""Tensors of fewer bytes stay on the device."""


@dataclass(slots=True, weakref_slot=True)
class _Kept:
    """One tensor on the host, and what it was on its device."""

    values: Tensor
    device: torch.device
    shape: torch.Size
    storage: StorageWeakRef
    standing: Standing | None


class _Offload:
    def __init__(self, resting: Iterable[tuple[str, str, Tensor]], tracer: Tracer | None) -> None:
        tensors = [tensor for *_, tensor in resting if describable(tensor)]
        self._resting = {tensor.untyped_storage()._cdata for tensor in tensors}
        self._tracer = tracer
        self._limited: dict[torch.device, bool] = {}
        self._kept: WeakValueDictionary[tuple[Any, ...], _Kept] = WeakValueDictionary()

    def pack(self, tensor: Tensor) -> Tensor | _Kept:
        with torch.no_grad(), own_work(), self._tracer.unseen() if self._tracer is not None else nullcontext():
            tensor = tensor.detach()
            if not describable(tensor) or memory.bytes_of(tensor) < SMALL or not self._is_limited(tensor.device):
                return tensor
            storage = tensor.untyped_storage()
            if storage._cdata in self._resting:
                return tensor
            place = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version)
            kept = self._kept.get((*place, tensor.dtype))
            if kept is None or kept.storage.expired():  # type: ignore[no-untyped-call]
                few, _ = once(tensor)
                if not memory.host_has_room(memory.bytes_of(few)):
                    return tensor
                kept = _Kept(
                    values=memory.copied_to_host(few),
                    device=tensor.device,
                    shape=tensor.shape,
                    storage=StorageWeakRef(storage),  # type: ignore[no-untyped-call]
                    standing=self._tracer.trace.standing(tensor) if self._tracer is not None else None,
                )
                self._kept[*place, tensor.dtype] = kept
            return kept

    def unpack(self, kept: Tensor | _Kept) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch.no_grad(), own_work(), self._tracer.unseen() if self._tracer is not None else nullcontext():
            tensor = memory.copied_to(kept.device, kept.values)
            if self._tracer is not None and kept.standing is not None:
                self._tracer.trace.stand_in(tensor, kept.standing)
            return tensor.expand(kept.shape)

    def _is_limited(self, device: torch.device) -> bool:
        if device not in self._limited:
            self._limited[device] = memory.spare_memory(device) is not None
        return self._limited[device]


@contextmanager
def offloaded(resting: Iterable[tuple[str, str, Tensor]], tracer: Tracer | None) -> Iterator[None]:
    """Around a replay: forward keeps its tensors on the host. `resting` is what lives on after the step.

    A tracer that listens sees neither way: what comes back is to it what went. Syncs with the host.
    """
    offload = _Offload(resting, tracer)
    with torch.autograd.graph.saved_tensors_hooks(offload.pack, offload.unpack):
        yield
