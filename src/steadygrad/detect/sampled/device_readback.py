"""Numbers on their way from the devices to the host: started without waiting, waited for when they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Readback:
    """A copy of small tensors, in flight. On CUDA it goes to pinned memory behind the work already queued; starting it
    does not synchronise. `values` waits, once a device."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sizes = [tensor.numel() for tensor in tensors]
        self._places: dict[torch.device, list[int]] = {}
        for index, tensor in enumerate(tensors):
            self._places.setdefault(tensor.device, []).append(index)
        self._pending_steps = [self._start([tensors[index] for index in places]) for places in self._places.values()]

    @staticmethod
    def _start(tensors: Sequence[Tensor]) -> tuple[Tensor, torch.cuda.Event | None]:
        flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
        if flat.device.type != "cuda":
            return flat, None
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(torch.cuda.current_stream(flat.device))
        return host, event

    def values(self) -> list[list[float]]:
        """Each tensor flattened, as plain numbers, in the order they were given."""
        found: list[list[float]] = [[] for _ in self._sizes]
        for (host, event), places in zip(self._pending_steps, self._places.values(), strict=True):
            if event is not None:
                event.synchronize()
            numbers, start = host.tolist(), 0
            for index in places:
                found[index] = numbers[start : start + self._sizes[index]]
                start += self._sizes[index]
        return found
