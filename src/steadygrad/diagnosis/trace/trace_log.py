"""What a traced replay leaves behind: ops, module visits, and one number for every tensor they touched.

Plain data once `finish` has run. Nothing here keeps a tensor alive: a weakly held storage keeps its address taken
(not its memory), so an address means one storage for the whole trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...detect.tensors.readable_tensors import describable
from .user_frames import Stack, UserFrame

Key = int
Standing = tuple[tuple[tuple[int, int | None], ...], tuple[str, str] | None]
"""Who wrote a storage so far, and its label."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One tensor as one op saw it. `writes_before` counts earlier writes to its storage, `reading` is its number."""

    storage: Key
    offset: int
    shape: tuple[int, ...]
    dtype: str
    reading: int | None
    writes_before: int


@dataclass(slots=True)
class OpRecord:
    """One aten op. `op` has no leading underscore, no overload and no in-place underscore."""

    ordinal: int
    op: str
    stage: str
    module: str | None
    stack: Stack
    call: str = ""
    site: UserFrame | None = None
    reads: tuple[Touch, ...] = ()
    writes: tuple[Touch, ...] = ()
    scalars: tuple[float, ...] = ()
    backward: bool = False
    forward_ordinal: int | None = None
    grad_enabled: bool = True
    view: bool = False
    unread: tuple[str, ...] = ()
    """Why inputs of this op were not read, one reason for each; () where all of them were."""

    @property
    def where(self) -> tuple[str, int] | None:
        return (self.site.file, self.site.line) if self.site else None


@dataclass(frozen=True, slots=True)
class ModuleVisit:
    """One call of a module: under which gradient mode, from which line, and whether its output can carry gradients."""

    name: str
    grad_enabled: bool
    stack: Stack
    trainable: bool
    stage: str
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """A tensor's values taken out of the graph without an op: `.data`, `.numpy()`, `.tolist()`."""

    storage: Key
    before: int
    """How many ops had run by then."""
    call: str
    module: str | None
    stack: Stack


@dataclass(slots=True)
class Trace:
    """What one replay left behind: plain data once `finish` has run."""

    records: list[OpRecord] = field(default_factory=list)
    visits: list[ModuleVisit] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    labels: dict[tuple[Key, int], tuple[str, str]] = field(default_factory=dict)
    storage_labels: dict[Key, tuple[str, str]] = field(default_factory=dict)
    unwritten: set[tuple[str, str]] = field(default_factory=set)
    """Buffers that hold nothing but infinities: a range that no one has measured yet, or a constant for masks."""
    overflowed: set[tuple[str, str]] = field(default_factory=set)
    """Buffers that hold plus infinities among finite numbers."""
    positive: set[tuple[str, str]] = field(default_factory=set)
    """Entries of the batch that hold plus infinities."""
    writers: dict[Key, list[tuple[int, int | None]]] = field(default_factory=dict)
    readings: list[Any] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)
    """What was met and not read, with the reason, and how often: "sparse tensor", "zero tensor" ..."""
    _alive: dict[Key, Any] = field(default_factory=dict)

    def finish(self) -> None:
        """Read all numbers from the device in one go per device. Syncs with the host once."""
        by_device: dict[torch.device, list[int]] = {}
        self.values = [0.0] * len(self.readings)
        for index, reading in enumerate(self.readings):
            by_device.setdefault(reading.device, []).append(index)
        for indices in by_device.values():
            stacked = torch.stack([self.readings[index].to(torch.float64) for index in indices])
            for index, value in zip(indices, stacked.tolist(), strict=True):
                self.values[index] = value
        self.readings.clear()
        self._alive.clear()

    def pass_over(self, why: str) -> None:
        """Note something that was met and not read."""
        self.unread[why] = self.unread.get(why, 0) + 1

    def value(self, touch: Touch) -> float:
        """Largest magnitude of the tensor then: NaN if it held a NaN, inf if an infinity and no NaN."""
        return self.values[touch.reading] if touch.reading is not None else 0.0

    def uses(self, dtype: str) -> bool:
        """Whether any op wrote a tensor of this type."""
        return any(touch.dtype == dtype for record in self.records for touch in record.writes)

    def label(self, touch: Touch) -> tuple[str, str]:
        """(kind, name) of the leaf the storage belongs to; kind is "constant" for what no one named."""
        exact = self.labels.get((touch.storage, touch.offset))
        return exact or self.storage_labels.get(touch.storage, ("constant", ""))

    def first_reader(self, leaf: tuple[str, str]) -> OpRecord | None:
        """The first op that reads a bad value of this leaf, and is no view of it."""
        reads = ((record, touch) for record in self.records if not record.view for touch in record.reads)
        return next((r for r, touch in reads if self.label(touch) == leaf and is_bad(self.value(touch))), None)

    def key_of(self, tensor: torch.Tensor) -> Key:
        """The identity of a tensor's storage, kept unique for as long as the trace is being made."""
        storage = tensor.untyped_storage()
        key: Key = storage._cdata
        if key not in self._alive:
            self._alive[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return key

    def standing(self, tensor: torch.Tensor) -> Standing:
        """What is known of a tensor now, for a copy that comes back later in its place."""
        key = self.key_of(tensor)
        label = self.labels.get((key, int(tensor.storage_offset()))) or self.storage_labels.get(key)
        return tuple(self.writers.get(key, ())), label

    def stand_in(self, copy: torch.Tensor, standing: Standing) -> None:
        """This copy came back in the place of a tensor: who reads it reads what that was then."""
        key, (writers, label) = self.key_of(copy), standing
        self.writers[key] = list(writers)
        if label is not None:
            self.storage_labels[key] = label

    def name(self, tensor: torch.Tensor, kind: str, name: str) -> None:
        """Say what a tensor is that exists before the step: a parameter, a buffer, a batch entry ..."""
        if describable(tensor):
            key = self.key_of(tensor)
            self.labels.setdefault((key, int(tensor.storage_offset())), (kind, name))
            self.storage_labels.setdefault(key, (kind, name))


def is_bad(value: float) -> bool:
    """Whether a reading says NaN or infinity."""
    return not math.isfinite(value)
