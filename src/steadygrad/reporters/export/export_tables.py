"""A run as plain tables, for pandas, a spreadsheet or a database: steps in a stream, incidents a row each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...journal import read_batches, read_incidents
from ...records import Incident, to_plain

PLAIN = ("step", "attempt", "rank", "time", "batch_key", "loss", "grad_norm", "lr", "loss_scale", "applied", "rung")
MAX_TERMS = 256
INCIDENT_COLUMNS = (
    "number", "first_step", "last_step", "time", "symptom", "headline", "actions", "batch_key", "cause_code", "cause",
    "origin_phase", "origin_op", "origin_module", "origin_source", "rows", "verified_remedies", "capsule",
)  # fmt: skip


def term_names(run_dir: str | os.PathLike[str]) -> list[str]:
    """The names of all loss terms of a run, in the order they were first seen."""
    found: dict[str, None] = {}
    for batch in read_batches(run_dir):
        for name in batch.column("terms").keys.unique().to_pylist():
            if len(found) < MAX_TERMS:
                found.setdefault(str(name))
    return list(found)


def step_rows(
    run_dir: str | os.PathLike[str], terms: Sequence[str], *, norms: bool = False
) -> Iterator[tuple[int, Iterator[list[Any]]]]:
    """Batches of steps as (how many, rows): plain columns, flags, one column a term, and the norms if asked for."""
    wanted = [*PLAIN, "flags", "terms", *(["norms"] if norms else [])]
    for batch in read_batches(run_dir):
        yield batch.num_rows, (_step_row(row, terms) for row in batch.select(wanted).to_pylist())


def _step_row(row: dict[str, Any], terms: Sequence[str]) -> list[Any]:
    inside = dict(row["terms"] or ())
    cells = [row[name] for name in PLAIN]
    cells.append(" ".join(row["flags"] or ()))
    cells += [inside.get(name) for name in terms]
    if "norms" in row:
        cells.append(None if row["norms"] is None else json.dumps(to_plain(row["norms"])))
    return cells


def incident_rows(run_dir: str | os.PathLike[str]) -> list[list[Any]]:
    """A row for every incident, in the order of INCIDENT_COLUMNS."""
    return [_incident_row(incident) for incident in read_incidents(run_dir)]


def _incident_row(incident: Incident) -> list[Any]:
    diagnosis = incident.diagnosis
    cause = diagnosis.cause if diagnosis else None
    origin = diagnosis.origin if diagnosis else None
    actions = incident.decision.actions if incident.decision else ()
    rows = diagnosis.rows if diagnosis else None
    return [
        incident.number,
        incident.first_step,
        incident.last_step,
        incident.time,
        incident.symptom,
        incident.headline,
        " ".join(str(action) for action in actions),
        incident.batch_key,
        cause.code if cause else None,
        cause.slug if cause else None,
        origin.phase if origin else None,
        origin.op if origin else None,
        origin.module if origin else None,
        origin.source if origin else None,
        " ".join(str(row) for row in rows) if rows is not None else None,
        " ".join(trial.remedy.slug for trial in diagnosis.remedies) if diagnosis else None,
        incident.capsule,
    ]
