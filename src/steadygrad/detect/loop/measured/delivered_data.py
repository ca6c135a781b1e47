"""What the loaders of a program deliver, as facts about live objects: how few samples a sampler can draw, whether the
classes come one after another, and whether a data set rewrites the samples that it keeps. What batches have in common
is looked at in the modules beside this one.

Everything is on the host. A loader that mixes its classes is looked at for a few batches, one that rewrites nothing for
a few batches of each epoch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler, Subset, WeightedRandomSampler

from ...graph.autograd_graph import saved_tensor
from ...tensors.foreign_objects import getattr, hasattr, isinstance
from ...tensors.nested_tensors import tensors_in
from .alike_samples import AlikeSamples
from .repeated_streams import Prints, RepeatedStreams

_NEAR = 24
"""So many nodes from the loss its targets are looked for."""
_MOST = 2048
"""Losses of which the targets are read."""
_ENOUGH, _SINGLE = 8, 0.8
_FEW_ROWS = 4
_OFTEN = 10
"""A sampler draws each of its samples so often in an epoch, and can draw only one in so many of the data set."""
_LOOKS = 4
_SOME = 4096
_DRIFT = 0.1
_MAX_BYTES = 1 << 30


class DeliveredData:
    """The loaders of one program. Each of the sentences is empty while nothing is wrong."""

    def __init__(self) -> None:
        self.few_drawn = ""
        """How a sampler can draw a few of the samples only."""
        self.classes = ClassesInOrder()
        self.kept = KeptSamples()
        self.streams = RepeatedStreams()
        self.samples = AlikeSamples()
        self._losses = 0

    def begins(self, loader: Any, epoch: Sequence[Prints] = ()) -> None:
        """A new iterator of a loader. `epoch` has the fingerprints of all batches since the one before began."""
        self.few_drawn = self.few_drawn or _few_drawn(loader)
        self.classes.begins(loader)
        self.kept.begins(loader)
        self.streams.begins(loader, epoch, trained=self._losses > 0)
        self._losses = 0

    def trained(self, loss: Tensor) -> None:
        """A loss, before its backward."""
        self._losses += 1
        self.classes.trained(loss)


def _few_drawn(loader: Any) -> str:
    sampler = loader.sampler
    if type(sampler) is not WeightedRandomSampler:
        return ""
    few, size, drawn = len(sampler.weights), _size(loader.dataset), sampler.num_samples
    if few * _OFTEN > size or few * _OFTEN > drawn:
        return ""
    often = drawn // few
    return f"a sampler has {few} weights for {size} samples: only the first {few} are drawn, {often} times in an epoch"


def _size(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:  # one that has no length, or not yet
        return 0


class ClassesInOrder:
    """Whether the targets of the losses between two batches of a loader that does not shuffle are of one class, and the
    classes come one after another, in each epoch."""

    def __init__(self) -> None:
        self.found = ""
        self.watching = False
        self._reads = 0
        self._now: list[int | None] = []
        self._before: list[int | None] = []

    def begins(self, loader: Any) -> None:
        """An epoch begins. One without losses, as of an evaluation, changes nothing."""
        if self._now:
            self._before, self._now = self._now, []
        self.watching = not self.found and self._reads < _MOST and type(loader.sampler) is SequentialSampler

    def trained(self, loss: Tensor) -> None:
        """A loss, before its backward. Reads two numbers of its targets, in host memory."""
        if not self.watching:
            return
        targets = _targets(loss)
        self._reads += 1
        if targets is None or targets.numel() < _FEW_ROWS or self._reads > _MOST:
            self.watching, self._now = False, []
            return
        low, high = int(targets.min()), int(targets.max())
        self._now.append(low if low == high else None)
        if len(self._now) == 2 * _ENOUGH and self._now.count(None) > (1 - _SINGLE) * len(self._now):
            self.watching = False
        elif len(self._now) == _ENOUGH and self._now == self._before[:_ENOUGH]:
            self._judge(self._before)

    def _judge(self, epoch: list[int | None]) -> None:
        single = [each for each in epoch if each is not None]
        runs = sum(1 for one, other in zip(single, [None, *single], strict=False) if one != other)
        if len(single) >= _SINGLE * len(epoch) and runs == len(set(single)) > 1:
            self.watching = False
            self.found = (
                f"in {len(single)} of {len(epoch)} batches of an epoch all targets are of one class, and the {runs} "
                "classes come one after another; the loader does not shuffle"
            )


def _targets(loss: Tensor) -> Tensor | None:
    """The class indices that a loss is computed from, where they are on the host."""
    waiting = [loss.grad_fn]
    for _ in range(_NEAR):
        handle = waiting.pop(0) if waiting else None
        if handle is None:
            return None
        if handle.name().startswith("NllLoss"):
            targets = saved_tensor(handle, "target")
            on_host = targets is not None and targets.device.type == "cpu"
            return targets[targets >= 0] if on_host and targets is not None else None
        waiting += [edge for edge, _ in handle.next_functions if edge is not None]
    return None


class KeptSamples:
    """Whether a data set writes into the samples that it keeps whenever they are asked for, so that they drift."""

    def __init__(self) -> None:
        self.found = ""
        self.watching = False
        """Whether the next batch is to be looked at."""
        self._dataset: Any = lambda: None
        self._arrays: list[Any] = []
        self._looks = 0
        self._before: list[Tensor] = []
        self._written: set[int] = set()
        self._history: list[list[tuple[float, float]]] = []

    def begins(self, loader: Any) -> None:
        """An epoch begins: how the kept samples are spread now, and whether the last epoch wrote into them."""
        self.watching, self._before = False, []
        dataset = loader.dataset
        if self.found or loader.num_workers or loader.batch_size is None:
            return
        if self._dataset() is not dataset:
            try:
                self._dataset = weakref.ref(dataset)
            except TypeError:
                return
            self._arrays, self._history = list(_kept_arrays(dataset)), []
        elif not self._written:
            self._arrays = []  # an epoch that leaves its samples alone
        if not self._arrays:
            return
        self._history.append([_spread(array()) for array in self._arrays])
        if len(self._history) == 3:
            self._judge()
        self._looks, self.watching, self._written = 0, not self.found, set()

    def drawing(self) -> None:
        """Before the samples of a batch are asked for."""
        self._before = [_some(array()) for array in self._arrays]

    def delivered(self, index: Any, batch: Any) -> None:
        """After that: was something written, and is it what was delivered?"""
        before, self._before = self._before, []
        self._looks += 1
        self.watching = self._looks < _LOOKS
        if isinstance(index, int) and before:
            for place, (array, old) in enumerate(zip(self._arrays, before, strict=True)):
                now = array()
                if not torch.equal(_some(now), old) and _is_in(now, self._row(index), batch):
                    self._written.add(place)

    def _row(self, index: int) -> int:
        dataset = self._dataset()
        return int(dataset.indices[index]) if isinstance(dataset, Subset) else index

    def _judge(self) -> None:
        first, second, third = self._history
        self._history = [second, third]
        for place in self._written:
            if _drifts(first[place], second[place]) and _drifts(second[place], third[place]):
                self.found = (
                    "the data set writes into the samples that it keeps: their mean and deviation were "
                    f"{first[place][0]:.3g} and {first[place][1]:.3g} at first, then {second[place][0]:.3g} and "
                    f"{second[place][1]:.3g}, now {third[place][0]:.3g} and {third[place][1]:.3g}"
                )


def _kept_arrays(dataset: Any) -> Iterator[Any]:
    """The tensors and arrays with a row for each sample, of which one is delivered: how to get each of them."""
    home = dataset.dataset if isinstance(dataset, Subset) else dataset
    size = _size(home)
    if not size or not hasattr(home, "__dict__"):
        return
    for name, value in list(vars(home).items()):
        kept = _as_tensor(value)
        if kept is not None and kept.dim() > 1 and kept.shape[0] == size:
            owner = weakref.ref(home)
            yield lambda owner=owner, name=name: _as_tensor(getattr(owner(), name, None))


def _as_tensor(value: Any) -> Tensor | None:
    """The same memory as a tensor, where it holds numbers with a fraction on the host and can be written. A file that
    is mapped into memory is not read."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.flags.writeable and value.dtype.kind == "f":
        try:
            value = torch.from_numpy(value)
        except (TypeError, ValueError):  # a kind or strides that torch does not have
            return None
    if type(value) is not Tensor or not 0 < value.nbytes <= _MAX_BYTES:
        return None
    usable = value.is_floating_point() and value.device.type == "cpu" and value.layout is torch.strided
    return value.detach() if usable else None


def _some(tensor: Tensor | None) -> Tensor:
    """Numbers from all over a tensor, copied."""
    if tensor is None:
        return torch.empty(0)
    rows = tensor[:: max(1, tensor.shape[0] // _SOME)]
    per_row = rows[0].numel()
    return rows.reshape(rows.shape[0], -1)[:, :: max(1, per_row * rows.shape[0] // _SOME)].clone()


def _spread(tensor: Tensor | None) -> tuple[float, float]:
    some = _some(tensor).double()
    return (float(some.mean()), float(some.std())) if some.numel() > 1 else (0.0, 0.0)


def _is_in(kept: Tensor | None, row: int, batch: Any) -> bool:
    """Whether the first sample of a batch is this row as it is kept now."""
    if kept is None or row >= kept.shape[0]:
        return False
    one = kept[row].reshape(-1)
    first = (each[0].reshape(-1) for each in tensors_in(batch) if each.dim() > 1 and each.device.type == "cpu")
    return any(each.numel() == one.numel() and torch.equal(each, one.to(each.dtype)) for each in first)


def _drifts(one: tuple[float, float], other: tuple[float, float]) -> bool:
    scale = max(one[1], 1e-30)
    return abs(other[0] - one[0]) > _DRIFT * scale or abs(other[1] - one[1]) > _DRIFT * scale
