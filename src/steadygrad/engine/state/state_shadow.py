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
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.changed_bits import BitChange, fault_in
from .training_state import TrainingState

BUDGET = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Bytes that are copied in each step, smallest tensors first."""
_RENEW = 1024
"""Updates after which the list of tensors is made anew: an optimizer may exchange its state."""
_MOST = 3
"""So many faults in one tensor are no chance: from then on its changes are left alone."""

_OFTEN = 50
"""A tensor that the program itself writes to more than twice, and once in so many updates, is not compared."""

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
    kept: Tensor
    change: BitChange

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the bits it had after the last update."""
        self.tensor.data.copy_(self.kept.view(self.tensor.shape))

    def __str__(self) -> str:
        index = ", ".join(map(str, _unravel(self.change.places[0], self.tensor.shape)))
        more = f" and {len(self.change.places) - 1} neighbours" if len(self.change.places) > 1 else ""
        return f"{self.name}[{index}]{more} changed from {self.change.old[0]:.6g} to {self.change.new[0]:.6g}"


class _Group:
    """Tensors of one type and device, and one piece of memory with all their values after the last update."""

    def __init__(self, named: Sequence[tuple[str, Tensor]]) -> None:
        self.names = [name for name, _ in named]
        self.tensors = [tensor for _, tensor in named]
        self._flat = [tensor.view(-1) for tensor in self.tensors]
        self._kept, self._now = torch.cat(self._flat), torch.cat(self._flat)
        self._versions: list[int] = []
        on_host = self._kept.device.type == "cpu"
        self._memory = (self._kept.data_ptr(), self._now.data_ptr(), self._kept.nbytes) if on_host else None

    def keep(self) -> None:
        torch.cat(self._flat, out=self._kept)
        self._versions = list(map(_version, self.tensors))

    def differs(self) -> Tensor:
        """Whether anything differs, on the device. Does not sync."""
        torch.cat(self._flat, out=self._now)
        return torch.ne(_bits(self._kept), _bits(self._now)).any()

    def keep_unless(self, refused: Tensor) -> None:
        """As `keep`, but what was kept stays where the device has refused the update. Does not sync."""
        torch.cat(self._flat, out=self._now)
        torch.where(refused, self._kept, self._now, out=self._kept)
        self._versions = list(map(_version, self.tensors))

    def written(self) -> list[str]:
        """The tensors that autograd counts a write to since."""
        now = list(map(_version, self.tensors))
        return (
            [name for name, a, b in zip(self.names, self._versions, now, strict=True) if a != b]
            if (now != self._versions)
            else []
        )

    def changed(self) -> list[int]:
        """The tensors that differ from what was kept although autograd counts no write."""
        torch.cat(self._flat, out=self._now)
        if self._memory is not None and _compare is not None:
            if not _compare(*self._memory):
                return []
        elif torch.equal(_bits(self._kept), _bits(self._now)):
            return []
        return [
            place
            for place, tensor in enumerate(self.tensors)
            if tensor._version == self._versions[place]
            and not torch.equal(_bits(self.kept(place)), _bits(self._part(self._now, place)))
        ]

    def kept(self, place: int) -> Tensor:
        """The values of one of them after the last update."""
        return self._part(self._kept, place)

    def _part(self, memory: Tensor, place: int) -> Tensor:
        return memory.narrow(0, sum(tensor.numel() for tensor in self.tensors[:place]), self.tensors[place].numel())


class StateShadow:
    """`keep` after an update; `faults` before the next. One per training."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._groups: list[_Group] = []
        self._listed: list[tuple[str, int, torch.Size]] = []
        self._restored, self._key = -1, 0
        self._updates = self._steps = self._events = 0
        self._faults: Counter[str] = Counter()
        self._theirs: Counter[str] = Counter()
        self._flag: Tensor | None = None
        self.on_host = True
        """Whether comparing needs no device to be waited for."""

    def forget(self) -> None:
        """The state is about to be other than the last update left it."""
        self._restored = -1

    def renew(self) -> None:
        """The optimizer has other state tensors from now on."""
        self._updates = 0

    def keep(self) -> None:
        """An update was applied: what is there now is right. Does not sync."""
        if self._updates % _RENEW < 2:
            self._list()
        self._updates += 1
        self._steps += 1
        for group in self._groups:
            group.keep()
        self._restored = self._state.restored

    def flag(self, device: torch.device) -> Tensor:
        """A number on the device, 1.0 if anything changed since `keep` and autograd counts no write, else 0.0. Always
        the same memory. Does not sync."""
        if self._flag is None or self._flag.device != device:
            self._flag = torch.zeros((), device=device)
        self._flag.zero_()
        if self._restored == self._state.restored and self._events <= 2 + self._steps // _OFTEN:
            if written := [name for group in self._groups for name in group.written()]:
                self._leave(written)
                return self._flag
            for group in self._groups:
                if group.tensors[0].device == device:
                    self._flag.logical_or_(group.differs())
        return self._flag

    def keep_unless(self, refused: Tensor) -> None:
        """An update was made under a flag on the device. Does not sync."""
        if self._updates % _RENEW < 2 or self._restored != self._state.restored:
            self.keep()  # nothing was compared, or what was is the program's: nothing is refused for it
            return
        self._updates += 1
        self._steps += 1
        for group in self._groups:
            group.keep_unless(refused != 0)

    def faults(self) -> list[StateFault]:
        """What a memory fault has changed since `keep`. On a CPU a comparison of memory; on a device a host read."""
        if self._restored != self._state.restored:
            return []
        changed = [(group, place) for group in self._groups for place in group.changed()]
        if not changed:
            return []
        self._restored = -1  # of what the program wrote there is no copy
        group, place = changed[0]
        name, tensor, kept = group.names[place], group.tensors[place], group.kept(place)
        # Faults do not come in pairs; programs write to many tensors.
        change = fault_in(kept, tensor.view(-1)) if len(changed) == 1 and not _shared(tensor) else None
        if change is None:
            self._leave([group.names[place] for group, place in changed])
            return []
        self._faults[name] += 1
        if self._faults[name] > _MOST:
            self._theirs[name] = sys.maxsize // 2
            self.renew()
            return []
        return [StateFault(name, tensor, kept, change)]

    def kept(self) -> dict[str, Tensor]:
        """What the last update left, by the names of the state; nothing where that is not known. Views, no copies."""
        if self._restored != self._state.restored:
            return {}
        return {name: group.kept(place) for group in self._groups for place, name in enumerate(group.names)}

    def _leave(self, names: Sequence[str]) -> None:
        """The program writes to these; those it writes to often are not compared."""
        self._theirs.update(names)
        self._events += 1
        self.renew()

    def _list(self) -> None:
        """Look which tensors there are, and choose the smallest."""
        key = self._state.identities()
        if self._updates == 1 and key == self._key:  # the second update made no further state
            return
        self._key = key
        found = [(name, t.detach()) for name, t in self._state.floating_tensors() if not name.startswith("buffer ")]
        found = [(name, t) for name, t in found if self._theirs[name] < 2 + self._steps // _OFTEN]
        found = [(name, t) for name, t in found if t.dim() and t.is_contiguous() and not _shared(t)]
        found.sort(key=lambda item: item[1].nbytes)
        chosen: dict[tuple[torch.dtype, torch.device], list[tuple[str, Tensor]]] = {}
        left = dict(BUDGET)
        for name, tensor in found:
            device = tensor.device
            left[device.type] = left.get(device.type, 0) - tensor.nbytes
            if left[device.type] >= 0:
                chosen.setdefault((tensor.dtype, device), []).append((name, tensor))
        listed = [(name, t.data_ptr(), t.shape) for named in chosen.values() for name, t in named]
        if listed != self._listed:
            self._listed = listed
            self._groups = [_Group(named) for named in chosen.values()]
            self.on_host = all(device.type == "cpu" for _, device in chosen)


def _bits(values: Tensor) -> Tensor:
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])


def _shared(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _unravel(place: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.insert(0, here)
    return index
