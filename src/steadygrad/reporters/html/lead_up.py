"""The steps that led up to an incident: what loss, gradient norm and single tensors did just before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...journal.steps.columns import names_of
from ...records import Incident
from ..run_data.step_columns import RankColumns, norms_of
from .number_text import figure

STEPS_DRAWN = 60
STEPS_LISTED = 6
NORMS_WITHIN = 150
MAX_GROWN = 6


class NormsBefore:
    """Keeps the norms of the steps before some incidents while the rows of a run pass by; the first rank speaks."""

    def __init__(self, incidents: Sequence[Incident]) -> None:
        self._firsts = sorted({incident.first_step for incident in incidents})
        self._kept: dict[int, list[tuple[int, Any, tuple[str, ...]]]] = {first: [] for first in self._firsts}
        self._rank: int | None = None

    def look(self, rank: int, batch: Any) -> None:
        """One record batch of one rank."""
        if self._rank is None:
            self._rank = rank
        if rank != self._rank or not self._firsts:
            return
        steps = batch.column("step").to_numpy()
        near = [first for first in self._firsts if first - NORMS_WITHIN <= steps.max() and first > steps.min()]
        if not near:
            return
        _, steps, matrix = norms_of(batch)
        names = names_of(batch.schema)
        for first in near:
            for place in np.flatnonzero((steps < first) & (steps >= first - NORMS_WITHIN)):
                self._kept[first].append((int(steps[place]), matrix[place].copy(), names))

    def before(self, first_step: int) -> list[tuple[int, Any, tuple[str, ...]]]:
        """(step, norms, names) of the steps just before, oldest first; only those that name the same tensors."""
        kept = sorted(self._kept.get(first_step, []), key=lambda entry: entry[0])
        return [entry for entry in kept if entry[2] == kept[-1][2]]


def lead_up(incident: Incident, rows: RankColumns, norms: NormsBefore) -> dict[str, Any]:
    """What a page shows of the steps before an incident."""
    until = _rows_until(incident, rows)
    steps = rows.column("step")[until]
    first = int(np.searchsorted(steps, incident.first_step))
    begin = max(0, first - STEPS_DRAWN)
    listed = range(max(0, first - STEPS_LISTED), min(first + 1, len(steps)))
    loss, norm, lr = (rows.column(name)[until] for name in ("loss", "grad_norm", "lr"))
    applied = rows.column("applied")[until]
    return {
        "from": int(steps[begin]) if first > begin else None,
        "to": int(steps[first - 1]) if first > begin else None,
        "loss": curve(loss[begin:first]),
        "grad_norm": curve(norm[begin:first]),
        "grew": _ratio(norm[begin:first]),
        "steps": [
            {
                "step": int(steps[place]),
                "loss": figure(float(loss[place])),
                "grad_norm": figure(float(norm[place])),
                "lr": figure(float(lr[place])),
                "refused": not bool(applied[place]),
            }
            for place in listed
        ],
        "grown": grown(norms.before(incident.first_step), _module(incident)),
    }


def grown(rows: list[tuple[int, Any, tuple[str, ...]]], module: str | None) -> list[dict[str, Any]]:
    """The tensors whose norms grew most over these rows, those of the origin's module before all others."""
    if len(rows) < 2:
        return []
    matrix = np.stack([norms for _, norms, _ in rows])
    names = rows[-1][2]
    found = []
    for place, name in enumerate(names[: matrix.shape[1]]):
        values = matrix[:, place]
        usable = values[np.isfinite(values) & (values > 0)]
        if len(usable) < 2:
            continue
        ratio = float(usable[-1]) / float(usable[0])
        near = bool(module) and (name == module or name.startswith(f"{module}."))
        found.append((near, ratio, name, usable))
    # A norm wanders by a third from step to step; less than half as much again is no growth worth telling.
    found = [entry for entry in found if entry[1] >= 1.5 or entry[0]]
    found.sort(key=lambda entry: (-entry[0], -entry[1]))
    return [
        {
            "name": name,
            "from": figure(float(usable[0])),
            "to": figure(float(usable[-1])),
            "times": f"{ratio:.1f}" if ratio < 1e4 else figure(ratio),
            "origin": near,
            "curve": curve(usable),
        }
        for near, ratio, name, usable in found[:MAX_GROWN]
    ]


def curve(values: Any, *, width: float = 240.0, height: float = 56.0) -> str | None:
    """The points of a line through the finite values, on a log axis where all are above zero; None below two points."""
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    if finite.sum() < 2:
        return None
    if (values[finite] > 0).all():
        values = np.log(np.where(finite, values, 1.0))
    low, high = float(values[finite].min()), float(values[finite].max())
    span = (high - low) or 1.0
    places = np.flatnonzero(finite)
    last = max(len(values) - 1, 1)
    return " ".join(
        f"{2 + (width - 4) * place / last:.1f},{height - 3 - (height - 6) * (values[place] - low) / span:.1f}"
        for place in places
    )


def _ratio(values: Any) -> str | None:
    """How many times larger the last few are than the first few, where that is a growth."""
    usable = values[np.isfinite(values) & (values > 0)]
    if len(usable) < 12:
        return None
    ratio = float(np.median(usable[-3:]) / np.median(usable[: len(usable) // 3]))
    return f"{ratio:.1f}" if math.isfinite(ratio) and ratio >= 1.5 else None


def _module(incident: Incident) -> str | None:
    origin = incident.diagnosis.origin if incident.diagnosis is not None else None
    return origin.module if origin is not None else None


def _rows_until(incident: Incident, rows: RankColumns) -> Any:
    """The rows that led to an incident, its own last: without later attempts at its step, and without earlier ones
    that a rollback had undone by then."""
    steps = rows.column("step")
    own = np.flatnonzero((steps == incident.first_step) & ~rows.column("applied"))
    if not len(own):
        own = np.flatnonzero(steps == incident.first_step)
    before = np.arange(int(own[-1]) + 1 if len(own) else len(steps))
    least = np.minimum.accumulate(steps[before][::-1])[::-1]
    return before[np.append(steps[before][:-1] < least[1:], True)] if len(before) else before
