"""Feeding trackers from a run's journal, once or while it goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...journal.steps.columns import names_of
from ...records import Incident
from ..run_data.follow_run import RunFollower
from ..run_data.norm_matrix import grouped
from ..run_data.run_summary import RunSummary, cause_in_words, summarise
from ..run_data.step_columns import OVERFLOW, norms_of
from ..terminal.console import shown
from ..terminal.print_diagnosis import steps_of
from .tracker import Tracker

MAX_LAYERS = 40


class Feed:
    """Hands every reading of a run to some trackers: the loss as it was, the share of refused steps, norms by layer.

    The lowest rank stands for the run.
    """

    def __init__(self, run_dir: Path, trackers: Sequence[Tracker]) -> None:
        self.num_steps = self.num_incidents = 0
        self._run_dir, self._trackers = run_dir, list(trackers)
        self._follower = RunFollower(run_dir)
        self._follower.on_batch = self._send_batch
        self._rank: int | None = None
        self._refused = self._counted = 0
        self._told: set[int] = set()

    def poll(self) -> RunSummary:
        """Sends what is new and returns the story so far."""
        self._follower.poll()
        story = summarise(self._run_dir, self._follower)
        for incident in story.incidents:
            # Its diagnosis comes a little later; it is sent once it is there, or when the run is over.
            if incident.number not in self._told and (incident.diagnosis is not None or story.state.word != "running"):
                self._told.add(incident.number)
                self.num_incidents += 1
                for tracker in self._trackers:
                    tracker.words(incident.first_step, incident.time, "steady/incident", in_words(incident))
        return story

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()

    def _send_batch(self, rank: int, batch: Any) -> None:
        self._rank = rank if self._rank is None else self._rank
        if rank != self._rank:
            return
        norms = _norms_by_row(batch)
        columns = ("step", "time", "loss", "grad_norm", "lr", "loss_scale", "applied", "flags", "terms")
        rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        for place, (step, time, loss, norm, lr, scale, applied, flags, terms) in enumerate(rows):
            overflow = not applied and flags[:1] == [OVERFLOW]
            self._counted += not overflow
            self._refused += not applied and not overflow
            values = {
                "steady/loss": loss,
                "steady/grad_norm": norm,
                "steady/lr": lr,
                "steady/refused": float(self._refused),
                "steady/refused_fraction": self._refused / max(1, self._counted),
                **({} if scale is None else {"steady/loss_scale": scale}),
                **{f"steady/terms/{shown(name, limit=100)}": value for name, value in terms},
                **norms.get(place, {}),
            }
            for tracker in self._trackers:
                tracker.numbers(step, time, values)
            self.num_steps += 1


def in_words(incident: Incident) -> str:
    """An incident in two or three sentences."""
    parts = [f"Incident {incident.number}, {steps_of(incident)}: {shown(incident.headline or incident.symptom)}."]
    cause = cause_in_words(incident)
    if cause:
        parts.append(f"Cause: {shown(cause)}.")
    words = incident.diagnosis.remedy_in_words if incident.diagnosis is not None else None
    if words:
        parts.append(f"{shown(words[:1].upper() + words[1:])}.")
    return " ".join(parts)


def _norms_by_row(batch: Any) -> dict[int, dict[str, float]]:
    """The norms of those rows that carry them, merged into at most MAX_LAYERS layers."""
    places, _, matrix = norms_of(batch)
    names = list(names_of(batch.schema))[: matrix.shape[1]]
    if not len(places) or not names:
        return {}
    layers, table = grouped(names, np.ascontiguousarray(matrix[:, : len(names)].T), limit=MAX_LAYERS)
    tags = [f"steady/norms/{shown(name, limit=100)}" for name in layers]
    return {
        int(place): {
            tag: float(value) for tag, value in zip(tags, table[:, column], strict=True) if not _missing(value)
        }
        for column, place in enumerate(places)
    }


def _missing(value: float) -> bool:
    return not math.isnan(value) and value < 0
