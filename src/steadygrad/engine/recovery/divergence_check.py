"""Whether a suspected divergence is one: batches are evaluated again, under the weights of now and of a good snapshot.

A loss may rise because the weights ran away, or because the data changed: longer sequences, another phase of a
curriculum, classes that come one after another, two kinds in turn. Data that changed leaves the training useful: on the
newest batches, or on those in between, the weights of now do better than those of the snapshot, even where others are
forgotten. Weights that ran away do worse on all. Only that, seen twice with a pause in between and no recovery
meanwhile, demonstrates a divergence.

The loss function is the one of now. Where the program has changed its objective since (another sign, scale, coefficient
or temperature), it cannot tell how good weights were for the earlier one: with the weights of a snapshot the batch that
came next must have about the loss that was recorded for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...detect.detectors.progress import divergence
from ...journal import Journal
from ...records import Finding, Reading, Severity
from ...records.rerun_flag import rerun
from ..fault_barrier import UserCodeError
from ..state.batch_buffer import BatchBuffer, BufferedBatch
from ..state.forward_state import ForwardState
from ..state.rng import put_rng
from ..state.snapshot_ring import Snapshot
from ..state.training_state import TrainingState, copy_tree
from ..step.user_step import UserStep
from ..step.window import out_of_memory

ASKED = 3
"""Older batches, and as many of the newest, that are evaluated."""
BETWEEN = 6
"""Batches from between them, evenly chosen."""
CONFIRM_AFTER = 32
"""Steps between the first evaluation that shows harm and the one that confirms it."""
PAUSE = 64
"""Steps after an evaluation that shows none before the next suspicion is looked into."""
_NO_WORSE = "batches evaluated again are no worse under the current weights than under the last good snapshot"
RECOVERING = 0.8
"""A loss that has fallen to this share since the first evaluation is recovering by itself."""


class DivergenceCheck:
    """Gets every applied step (`note`); runs a few forward passes between two steps where one is `due`."""

    def __init__(self, program: UserStep, forward: ForwardState, state: TrainingState, journal: Journal) -> None:
        self._program, self._forward, self._state, self._journal = program, forward, state, journal
        self._suspicion: Finding | None = None
        self._reading: Reading | None = None
        self._look_at = 0
        self.watching = False
        """Whether a divergence is suspected, or was lately: then every applied step is noted."""
        self._level_at_first: float | None = None

    @property
    def open(self) -> bool:
        """Whether a first evaluation showed harm and waits to be confirmed; snapshots from before must be kept."""
        return self._level_at_first is not None

    def note(self, reading: Reading, findings: Sequence[Finding]) -> None:
        """An applied step and what was found. Host only."""
        self._reading = reading
        self._suspicion = next((found for found in findings if found.code == divergence.RULE.code), None)
        self.watching = self._suspicion is not None or self.open
        if not self.watching:
            self._look_at = min(self._look_at, reading.step + 1)

    def due(self, step: int) -> bool:
        if self.open:
            return step >= self._look_at
        return self._suspicion is not None and step >= self._look_at

    def look(
        self, step: int, snapshots: Sequence[Snapshot], buffer: BatchBuffer, losses: Sequence[float]
    ) -> tuple[Reading, Finding] | None:
        """Evaluate; the divergence and its step if it is demonstrated now, else None. `snapshots` are the last good one
        from before it and those since, `losses` the newest ones. Ends with state bit for bit as it was. Costs a dozen
        forward passes."""
        suspicion, reading = self._suspicion, self._reading
        level = statistics.median(losses) if losses else math.nan
        self._look_at = step + PAUSE
        if suspicion is None or reading is None or not snapshots:
            self._level_at_first = None
            return None
        harmed = self._harmed(snapshots, buffer.unchanged(), buffer.losses)
        if not harmed:
            why = "it could not be checked" if harmed is None else _NO_WORSE
            self._journal.event("divergence_not_confirmed", step=step, detail=f"{suspicion.detail}; {why}")
            self._level_at_first = None
            return None
        first, self._level_at_first = self._level_at_first, None
        if first is None:
            self._level_at_first, self._look_at = level, step + CONFIRM_AFTER
            return None
        if level <= RECOVERING * first:
            return None
        return reading, replace(
            suspicion, severity=Severity.WARNING, evidence={**suspicion.evidence, "demonstrated": True},
            detail=f"{suspicion.detail}; older and newest batches evaluated again have at least twice the loss they "
            f"have with the weights of step {snapshots[0].step}",
        )  # fmt: skip

    def _harmed(
        self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch], recorded: Mapping[int, float]
    ) -> bool | None:
        """Whether most of the older and most of the newest batches do worse now, and none between them is learnt; None
        if it cannot be known."""
        older = [t for t in buffered if t.step <= snapshots[0].step + ASKED][:ASKED]
        newest = [t for t in buffered if t not in older][-ASKED:]
        if len(older) < ASKED or len(newest) < ASKED:
            return None
        between = [t for t in buffered if t not in older and t not in newest]
        asked = [*older, *newest, *between[:: max(1, len(between) // BETWEEN)][:BETWEEN]]
        entry, here = self._forward.take(), copy_tree(self._state.live(), lambda t: t.to("cpu", copy=True))
        try:
            now = [self._loss(t) for t in asked]
            if not all(self._same_objective(snapshot, buffered, recorded) for snapshot in reversed(snapshots)):
                return None
            then = [self._loss(t) for t in asked]
        except UserCodeError:
            return None
        except Exception as error:
            if not out_of_memory(error):
                raise
            return None
        finally:
            self._state.restore(here)
            self._forward.restore(entry)
        if any(_of_other_sign(recorded.get(t.step), a, b) for t, a, b in zip(asked, now, then, strict=True)):
            return None
        worse = [_worse(a, b) for a, b in zip(now, then, strict=True)]
        learnt = any(_better(a, b) for a, b in zip(now[2 * ASKED :], then[2 * ASKED :], strict=True))
        return not learnt and 2 * sum(worse[:ASKED]) > ASKED and 2 * sum(worse[ASKED : 2 * ASKED]) > ASKED

    def _same_objective(
        self, snapshot: Snapshot, buffered: Sequence[BufferedBatch], recorded: Mapping[int, float]
    ) -> bool:
        """Whether the first step after a snapshot has about the loss that was recorded for it, with the random numbers
        of then. Leaves the weights of the snapshot in place."""
        self._state.restore(snapshot.tree)
        near = [t for t in buffered if snapshot.step <= t.step < snapshot.step + ASKED and t.step in recorded]
        losses = [self._loss(t, as_then=True) for t in near[:ASKED] if t.step == near[0].step]
        known = [loss for loss in losses if loss is not None]
        return bool(known) and _about(statistics.fmean(known), recorded[near[0].step])

    def _loss(self, buffered: BufferedBatch, *, as_then: bool = False) -> float | None:
        if as_then and buffered.rng is not None:
            put_rng(buffered.rng)
        with rerun(), torch.enable_grad():
            terms = self._program.forward(buffered.fetch())
        return None if terms is None else float(terms["loss"].detach())


def _about(loss: float, recorded: float) -> bool:
    """Whether they have one sign and differ by a factor of two at the most."""
    return abs(loss - recorded) <= 0.5 * max(abs(loss), abs(recorded))


def _of_other_sign(recorded: float | None, now: Any, then: Any) -> bool:
    """Whether a loss was recorded with a sign that it has neither now nor with the weights from before."""
    if recorded is None or now is None or then is None:
        return False
    return bool(recorded < 0.0 < min(now, then) or max(now, then) < 0.0 < recorded)


def _worse(now: Any, then: Any) -> bool:
    """Whether a loss has grown by at least its own size."""
    if now is None or then is None or not math.isfinite(then):
        return False
    return not math.isfinite(now) or now - then > max(abs(then), 1e-12)


def _better(now: Any, then: Any) -> bool:
    """Whether a loss has fallen: the training since has been of use for that batch."""
    return now is not None and then is not None and now < 0.9 * then
