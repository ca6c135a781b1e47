"""Incidents on disk: `incidents/NNNN/incident.json`, replaced whole when a diagnosis is added later."""

from __future__ import annotations

import os
from pathlib import Path

from ..records import Incident, from_plain, to_plain
from ..records.errors import JournalError
from . import safe_files
from .run_directory import RunDirectory, incident_name, incident_numbers, open_run, own_name

INCIDENT_VERSION = 1
MAX_INCIDENT_BYTES = 16 << 20


def write_incident(run: RunDirectory, incident: Incident) -> Path:
    """Puts an incident on disk, or its new version in place of the old, and returns the path. Waits for the disk."""
    return put_incident(run, incident.number, encode_incident(incident))


def put_incident(run: RunDirectory, number: int, data: bytes) -> Path:
    """`write_incident` for one already encoded."""
    path = safe_files.inside(run.incident_directory(number), own_name("incident", ".json", run.rank))
    safe_files.replace_file(path, data)
    return path


def encode_incident(incident: Incident) -> bytes:
    return safe_files.json_bytes({"version": INCIDENT_VERSION, **to_plain(incident)})


def read_incident(path: Path) -> Incident:
    """The incident in one file, or one sentence on what is wrong with it."""
    data = safe_files.read_json(path, limit=MAX_INCIDENT_BYTES)
    version = data.get("version")
    if not isinstance(version, int):
        raise JournalError(f"{path} is not an incident that steadygrad wrote: it has no format version.")
    if version > INCIDENT_VERSION:
        raise JournalError(
            f"{path} has format version {version}, this steadygrad reads up to {INCIDENT_VERSION}: upgrade steadygrad."
        )
    try:
        return from_plain(Incident, data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(f"{path} is not an incident that steadygrad wrote: {str(error)[:200]}.") from error


def read_incidents(run_dir: str | os.PathLike[str]) -> list[Incident]:
    """The incidents of a run in the order of their numbers. A number whose file was never finished is passed over."""
    root = open_run(run_dir)
    directory = safe_files.inside(root, "incidents")
    paths = (safe_files.inside(directory, incident_name(number), "incident.json") for number in incident_numbers(root))
    return [read_incident(path) for path in paths if path.exists()]
