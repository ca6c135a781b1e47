"""What is worth knowing of a run at this moment, as plain data: for a program, for a line of text, for a screen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .downsample import success_rate
from .run_summary import RunSummary, counts_of, kind_of, one_line
from .step_columns import RankColumns

RECENT = 100
INCIDENTS_TOLD = 8
MEMORY_POINTS = 24


def glance(story: RunSummary, *, rank: int | None = None, incidents: int = INCIDENTS_TOLD) -> dict[str, Any]:
    """Numbers of the rank that was asked for (the lowest otherwise), and what all ranks share."""
    rows = next((rows for rows in story.ranks if rows.rank == rank), story.rows)
    counts = replace(counts_of(rows), by_program=story.counts.by_program)
    kinds = story.kinds
    return {
        "run": str(story.path),
        "state": story.state.word,
        "sentence": story.state.sentence,
        "headline": story.headline,
        "rank": rows.rank if rows is not None else None,
        "step": int(rows.last("step") or 0) if rows is not None else None,
        "steps": counts.steps,
        "refused": counts.refused,
        "overflows": counts.overflows,
        "skipped_by_program": counts.by_program,
        "success_rate": counts.success_rate,
        "success_rate_recent": recent_rate(rows) if rows is not None else 1.0,
        "loss": _last(rows, "loss"),
        "grad_norm": _last(rows, "grad_norm"),
        "lr": _last(rows, "lr"),
        "loss_scale": _last_number(rows, "loss_scale"),
        "memory": memory_now(rows) if rows is not None else None,
        "rung": int(rows.last("rung") or 0) if rows is not None else 0,
        "steps_per_second": speed(rows) if rows is not None else None,
        "ranks": [
            {
                "rank": other.rank,
                "step": int(other.last("step") or 0),
                "loss": other.last("loss"),
                "refused": int(other.refused.sum()),
            }
            for other in story.ranks
        ],
        "num_incidents": len(story.incidents),
        "incidents": [
            {
                "number": incident.number,
                "first_step": incident.first_step,
                "last_step": incident.last_step,
                "symptom": incident.symptom,
                "headline": incident.headline,
                "diagnosis": one_line(incident, kind_of(incident, kinds)),
            }
            for incident in story.incidents[-incidents:]
        ],
        "vitals": [
            {key: event.data.get(key) for key in ("code", "slug", "step", "subject", "detail")}
            for event in story.vitals[-incidents:]
        ],
        "notes": story.notes,
    }


def memory_now(rows: RankColumns) -> dict[str, Any] | None:
    """The newest sample of the memory in use, in bytes, and the most so far; None if none was recorded."""
    what, _, values = rows.memory()
    if not len(values):
        return None
    most = float(rows.memory(peak=True)[2].max())
    curve = [float(part.mean()) for part in np.array_split(values, min(MEMORY_POINTS, len(values)))]
    return {"of": what, "bytes": float(values[-1]), "most": most, "curve": curve}


def recent_rate(rows: RankColumns) -> float:
    """The share of the last steps that were applied."""
    applied, overflow = rows.final("applied")[-RECENT:], rows.final("overflow")[-RECENT:]
    return float(success_rate(applied, overflow, window=RECENT)[-1]) if len(applied) else 1.0


def speed(rows: RankColumns) -> float | None:
    """Steps in a second over the last ones; None before there are two."""
    times = rows.column("time")[-RECENT:]
    seconds = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / seconds if seconds > 0 else None


def _last(rows: RankColumns | None, name: str) -> float | None:
    return rows.last(name) if rows is not None else None


def _last_number(rows: RankColumns | None, name: str) -> float | None:
    last = _last(rows, name)
    return None if last is None or np.isnan(last) else last
