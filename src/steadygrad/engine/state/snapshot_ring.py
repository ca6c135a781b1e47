"""A ring of last good states in memory.

A snapshot is taken before a forward pass and is called good only when everything in it was seen to be finite. On a
GPU it is copied to pinned host memory on a side stream while forward and backward run; the optimizer waits for the
copy on the device, not on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .pinned_memory import ALIGNED, PinnedArena
from .training_state import TrainingState, Tree, copy_tree, largest_magnitudes


class Snapshot:
    """One state. `good` waits for the answer of the scan the first time it is asked."""

    def __init__(self, step: int, tree: Tree, largest: list[Tensor], done: Any) -> None:
        self.step = step
        self.place = 0
        """The stretch of training code that came after it: see `ForwardState.rng_without`."""
        self.tree = tree
        self._largest = largest
        self._done = done
        self._good: bool | None = None

    @property
    def good(self) -> bool:
        """Whether everything it holds is finite. Waits for the copy on a GPU."""
        if self._good is None:
            if self._done is not None:
                self._done.synchronize()
            self._good = all(bool(torch.isfinite(part).all()) for part in self._largest if part.numel())
            self._largest = []
        return self._good


_MOVED_BY_FORWARD = ("buffers", "counters", "extras")


class SnapshotRing:
    """The newest snapshots, oldest dropped first, but never the last good one."""

    def __init__(self, state: TrainingState, *, size: int = 2, device: torch.device, on_device: bool = False) -> None:
        self._state = state
        self._size = size
        self._device = device
        self._on_device = on_device
        self._stream: Any = _side_stream(device) if device.type == "cuda" and not on_device else None
        self._ring: list[Snapshot] = []
        self._spare: list[dict[tuple[Any, ...], list[Tensor]]] = []
        self.copying = False
        """Whether a copy may still be under way on the device."""
        self.last_step = -1
        """The step of the newest snapshot; -1 where there is none."""
        self._timed: tuple[Any, Any] | None = None
        self._host_seconds = 0.0

    @property
    def seconds(self) -> float:
        """What the last snapshot cost at the most: the device's time to copy, and the host's to ask for it. Zero on a
        CPU, where the interval is as the policy says. Does not wait: an unfinished copy counts as no time yet."""
        if self._timed is None or not self._timed[1].query():
            return 0.0
        return self._host_seconds + float(self._timed[0].elapsed_time(self._timed[1])) / 1e3

    def all(self) -> list[Snapshot]:
        """Every snapshot kept, oldest first."""
        return list(self._ring)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(snapshot.step for snapshot in self._ring)

    def take(self, step: int, earlier: Tree | None = None) -> Snapshot:
        """Copy the state, with the parts in `earlier` in place of the live ones. On a GPU the copy runs beside compute:
        the device first copies what a forward writes to; call `wait_for_copies` before the update."""
        self._make_room()
        started = time.perf_counter()
        reused = bool(self._spare)
        live = {**self._state.live(), **(earlier or {})}
        buffers = {f"buffer {name}": tensor for name, tensor in live["buffers"].items()}
        tensors = [(name, buffers.get(name, tensor)) for name, tensor in self._state.floating_tensors()]
        copier = _Copier(self._spare.pop() if self._spare else {}, self._device, self._on_device, _bytes_in(live))
        moving, rest = {key: live[key] for key in _MOVED_BY_FORWARD}, dict(live)
        first = _by_device(tensor for name, tensor in tensors if name in buffers)
        later = _by_device(tensor for name, tensor in tensors if name not in buffers)
        done = None
        if self._stream is not None:
            main = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(main)
            with torch.cuda.stream(self._stream):
                begun = _event()
                begun.record(self._stream)
                tree = rest | copy_tree(moving, copier)
                largest = [copier(largest_magnitudes(group)) for group in first]
                main.wait_stream(self._stream)  # what the forward writes to; the rest waits for the update
                tree |= copy_tree({key: value for key, value in live.items() if key not in moving}, copier)
                largest += [copier(largest_magnitudes(group)) for group in later]
                done = _event()
                done.record(self._stream)
            self.copying = True
            self._timed = (begun, done)
        else:
            tree = copy_tree(live, copier)
            largest = [largest_magnitudes(group) for group in (*first, *later)]
        snapshot = Snapshot(step, tree, largest, done)
        snapshot.place = self._state.forward.place
        self._ring.append(snapshot)
        self.last_step = step
        # The first ones also allocate pinned memory, which is slow and never happens again.
        self._host_seconds = time.perf_counter() - started if reused else 0.0
        return snapshot

    def wait_for_copies(self) -> None:
        """Make the device finish copying before what follows on the current stream. Does not stop the host."""
        if self.copying:
            self.copying = False
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def newest_good(self, *, before: int | None = None) -> Snapshot | None:
        """The newest finite snapshot taken at or before step `before`."""
        for snapshot in reversed(self._ring):
            if (before is None or snapshot.step <= before) and snapshot.good:
                return snapshot
        return None

    def good(self) -> list[Snapshot]:
        """All finite snapshots, oldest first. Waits for copies on a GPU."""
        return [snapshot for snapshot in self._ring if snapshot.good]

    def clear(self) -> None:
        """Forget all of them."""
        self._ring.clear()
        self._spare.clear()
        self.last_step = -1

    def discard_after(self, step: int) -> None:
        """Forget snapshots taken after `step`: a rollback has made them another history."""
        self._ring = [snapshot for snapshot in self._ring if snapshot.step <= step]
        self.last_step = self._ring[-1].step if self._ring else -1

    def _make_room(self) -> None:
        """Drop the oldest that is not the last good one, and keep its memory for the next."""
        if len(self._ring) < self._size:
            return
        keep = self.newest_good()
        victim = next((snapshot for snapshot in self._ring if snapshot is not keep), None)
        if victim is not None:
            self._ring.remove(victim)
            self._spare.append(_reusable(victim.tree))


class _Copier:
    """Copies tensors into reused memory of the same shape where there is some. Allocating pinned memory is slow."""

    def __init__(
        self, spare: dict[tuple[Any, ...], list[Tensor]], device: torch.device, on_device: bool, expected: int
    ) -> None:
        self._spare = spare
        self._arena = PinnedArena(0 if spare else expected)
        self._pinned = device.type == "cuda" and not on_device

    def __call__(self, tensor: Tensor) -> Tensor:
        waiting = self._spare.get(_shape_key(tensor))
        if waiting:
            target = waiting.pop()
        elif self._pinned and tensor.device.type == "cuda":
            target = self._arena.like(tensor)
        else:
            target = torch.empty_like(tensor)
        target.copy_(tensor, non_blocking=True)
        return target


def _by_device(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device, []).append(tensor)
    return list(groups.values())


def _bytes_in(tree: Tree) -> int:
    total = 0

    def weigh(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size() + ALIGNED if tensor.device.type == "cuda" else 0
        return tensor

    copy_tree(tree, weigh)
    return total


def _shape_key(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.dtype, tuple(tensor.shape))


def _reusable(tree: Tree) -> dict[tuple[Any, ...], list[Tensor]]:
    spare: dict[tuple[Any, ...], list[Tensor]] = {}

    def collect(tensor: Tensor) -> Tensor:
        spare.setdefault(_shape_key(tensor), []).append(tensor)
        return tensor

    keep: Callable[[Tensor], Tensor] = collect
    copy_tree(tree, keep)
    return spare


def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
