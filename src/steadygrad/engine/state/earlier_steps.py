"""What is kept of the steps before a refused one, for the diagnosis to go back to: snapshots and the batches since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .batch_buffer import BatchBuffer, BufferedBatch, FetchedBatches, by_step
from .snapshot_ring import Snapshot, SnapshotRing


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSteps:
    """Holds what recovery holds anyway; nothing is copied until someone goes back."""

    snapshots: Sequence[Snapshot]
    """The good ones, oldest first."""
    windows: Sequence[tuple[int, list[BufferedBatch]]]
    """(step, its micro-batches) of every applied step since the oldest snapshot, in order."""
    lost_before: int = 0
    """Batches of steps before this one are no longer kept."""
    scheduler: Any = None
    bad_at_start: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of parameters and buffers that were not finite before the very first step."""

    def since(self, step: int, before: int) -> list[tuple[int, Sequence[Any]]] | None:
        """(step, batches) of the steps from `step` up to `before`, that not among them; None if some are lost."""
        wanted = [(number, group) for number, group in self.windows if step <= number < before]
        if step < self.lost_before or any(buffered.changed() for _, group in wanted for buffered in group):
            return None
        return [(number, FetchedBatches(group)) for number, group in wanted]


def earlier_steps_of(
    ring: SnapshotRing,
    batch_buffer: BatchBuffer,
    left_out: Collection[str],
    scheduler: Any,
    bad_at_start: frozenset[tuple[str, str]],
) -> EarlierSteps:
    """The past as recovery keeps it, without the batches that were refused. Waits for copies on a GPU."""
    groups = by_step([buffered for buffered in batch_buffer.newest(len(batch_buffer)) if buffered.key not in left_out])
    return EarlierSteps(
        snapshots=ring.good(),
        windows=[(group[0].step, group) for group in groups],
        lost_before=batch_buffer.lost_before,
        scheduler=scheduler,
        bad_at_start=bad_at_start,
    )


def kinds_and_names(labels: Iterable[str]) -> frozenset[tuple[str, str]]:
    """("parameter", "head.weight") for "parameter head.weight"; what is neither parameter nor buffer is left out."""
    pairs = [label.partition(" ") for label in labels]
    return frozenset((kind, name) for kind, _, name in pairs if kind in ("parameter", "buffer"))
