"""From the words of a command line to a capsule's folder and to the user's own function. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ...detect.tensors.foreign_objects import getattr
from ...journal import read_incidents, safe_files
from ...journal.incident_files import read_incident
from ...journal.run_directory import incident_name
from ...records.errors import CapsuleError, UsageError
from .manifest import MANIFEST


def find_capsule(target: str | os.PathLike[str]) -> Path:
    """The folder a path means: an incident's own, or that of the newest incident of a run that has a capsule.

    Which folder is decided by its number; the path written in an incident is shown and never followed.
    """
    path = Path(target)
    if not path.is_dir():
        raise CapsuleError(f"There is no directory {path}, so there is no capsule to replay.")
    if (path / MANIFEST).exists():
        return _of_its_rank(path)
    if path.parent.name == "incidents" and (path / "incident.json").exists():
        part = _of_its_rank(path)
        if not (part / MANIFEST).exists() and read_incident(path / "incident.json").capsule is None:
            raise CapsuleError(_none(f"Incident {path.name}", path.parent.parent))
        return part
    numbers = [incident.number for incident in read_incidents(path)]
    folders = [safe_files.inside(path, "incidents", incident_name(number)) for number in numbers]
    for folder in reversed(folders):
        if (folder / MANIFEST).exists() or (_of_its_rank(folder) / MANIFEST).exists():
            return _of_its_rank(folder)
    raise CapsuleError(_none(f"No incident of {path}", path))


def _none(which: str, run: Path) -> str:
    has = "has a capsule" if which.startswith("No ") else "has no capsule"
    return (
        f"{which} {has}, so it cannot be replayed: a Guard with a run_dir keeps one for the first incident of each "
        f"kind; steady run and attach(optimizer) keep none, and diagnose at once instead: steady diagnose {run}"
    )


def _of_its_rank(folder: Path) -> Path:
    """Of a run of several ranks, the part of the rank where it began: the step of another would come out fine."""
    path = folder / "incident.json"
    if not path.exists():
        return folder
    findings = read_incident(path).findings
    rank = findings[0].rank if findings else 0
    part = safe_files.inside(folder, f"rank{int(rank)}")
    return part if (part / MANIFEST).exists() else folder


def load_entry(words: str) -> Callable[[], Any]:
    """The function called `module:function`, imported with the current directory first on the path."""
    module_name, colon, name = words.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"--entry is {words!r}: expected module:function, for example train:make.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as error:
        raise UsageError(f"--entry {words}: importing {module_name} raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--entry {words}: {module_name} has no function {name}.")
    found: Callable[[], Any] = function
    return found
