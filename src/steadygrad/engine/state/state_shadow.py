"""A second copy of small weights and moments, made after each update: what a memory fault changes until the next one is
seen, and its exact bits are still there.

Of large tensors no copy is kept, for copying them would cost more than it is worth; in a large tensor only a change to
an enormous size can do harm, and that shows in the loss or the gradients. A tensor that the program has written to
since (autograd counts writes) is the program's business, and so is one whose memory was exchanged or is shared with
other processes.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.changed_bits import BitChange, fault_in
from .training_state import TrainingState

BUDGET = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Bytes that are copied in each step, smallest tensors first."""
_RENEW = 64
"""Updates after which the list of tensors is made anew: an optimizer may exchange its state."""
_MOST = 3
"""So many faults in one tensor are no chance: from then on its changes are left alone."""

_version = operator.attrgetter("_version")


def _memory_comparison() -> Any:
    """The C library's memcmp, several times faster on small tensors than `torch.equal`; None where there is none."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return found


_compare = _memory_comparison()


@dataclass(frozen=True, slots=True)
class StateFault:
    """A tensor that a memory fault has changed."""

    name: str
    tensor: Tensor
    copy: Tensor
    change: BitChange

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the bits it had after the last update."""
        self.tensor.data.copy_(self.copy)

    def __str__(self) -> str:
        shape, place = self.tensor.shape, self.change.places[0]
        index = ", ".join(map(str, _unravel(place, shape)))
        more = f" and {len(self.change.places) - 1} neighbours" if len(self.change.places) > 1 else ""
        return f"{self.name}[{index}]{more} changed from {self.change.old[0]:.6g} to {self.change.new[0]:.6g}"


class StateShadow:
    """`keep` after an update; `faults` before the next. One per training."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._pairs: list[tuple[int, int, int]] = []
        self._versions: list[int] = []
        self._restored = -1
        self._updates = 0
        self._seen: dict[str, int] = {}

    def forget(self) -> None:
        """The state is about to be other than the last update left it."""
        self._restored = -1

    @torch.no_grad()
    def keep(self) -> None:
        """An update was applied: what is there now is right. Does not sync."""
        if self._updates % _RENEW < 2 or not self._tensors:
            self._list()
        self._updates += 1
        torch._foreach_copy_(self._copies, self._tensors)
        self._versions = list(map(_version, self._tensors))
        self._restored = self._state.restored

    def faults(self) -> list[StateFault]:
        """What a memory fault has changed since `keep`. On a CPU a comparison of memory; on a device a host read."""
        if self._restored != self._state.restored:
            return []
        changed = self._changed()
        if not changed:
            return []
        self._restored = -1  # of what the program wrote there is no copy
        if len(changed) > 1:
            return []  # faults do not come in pairs; programs write everything
        return self._looked_at(changed[0])

    def _looked_at(self, place: int) -> list[StateFault]:
        name, tensor, copy = self._names[place], self._tensors[place], self._copies[place]
        change = fault_in(copy.reshape(-1), tensor.data.reshape(-1))
        if change is None or self._seen.get(name, 0) >= _MOST:
            return []
        self._seen[name] = self._seen.get(name, 0) + 1
        return [StateFault(name, tensor, copy, change)]

    def _changed(self) -> list[int]:
        """The tensors that differ from their copies although autograd counts no write."""
        untouched = list(map(operator.eq, map(_version, self._tensors), self._versions))
        if self._pairs:
            return [
                place
                for place, (tensor, (here, copy, size)) in enumerate(zip(self._tensors, self._pairs, strict=True))
                if untouched[place] and tensor.data_ptr() == here and _compare(here, copy, size)
            ]
        differ = [not torch.equal(a, b) for a, b in zip(self._tensors, self._copies, strict=True)]
        return [place for place, each in enumerate(differ) if each and untouched[place]]

    def _list(self) -> None:
        """Look which tensors there are, and choose the smallest."""
        found = [(name, t) for name, t in self._state.floating_tensors() if not name.startswith("buffer ")]
        found = [(name, t) for name, t in found if t.dim() and t.is_contiguous() and not _shared(t)]
        found.sort(key=lambda item: item[1].numel() * item[1].element_size())
        left = BUDGET.get(found[0][1].device.type, 0) if found else 0
        chosen: list[tuple[str, Tensor]] = []
        for name, tensor in found:
            left -= tensor.numel() * tensor.element_size()
            if left < 0 or tensor.device != found[0][1].device:
                break
            chosen.append((name, tensor))
        if len(chosen) == len(self._tensors) and all(
            tensor.data_ptr() == kept.data_ptr() and tensor.shape == kept.shape and tensor.dtype is kept.dtype
            for (_, tensor), kept in zip(chosen, self._tensors, strict=True)
        ):
            return
        self._names = [name for name, _ in chosen]
        self._tensors = [tensor for _, tensor in chosen]
        self._copies = [torch.empty_like(tensor) for tensor in self._tensors]
        on_host = _compare is not None and all(t.device.type == "cpu" for t in self._tensors)
        self._pairs = (
            [
                (t.data_ptr(), copy.data_ptr(), t.numel() * t.element_size())
                for t, copy in zip(self._tensors, self._copies, strict=True)
            ]
            if on_host
            else []
        )


def _shared(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _unravel(place: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.insert(0, here)
    return index
