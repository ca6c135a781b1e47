"""The program that was running when a capsule was kept: its words, where it ran, and the hash of its script. No torch.

Nothing here starts anything. What a capsule says of a program is a stranger's word until the person at the terminal
has seen the command and agreed to it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...detect.tensors.foreign_objects import getattr
from ...journal.run_directory import redacted
from ...records.errors import CapsuleError, UsageError
from .manifest import check_checksums, read_manifest

ENTRY_HINT = "You can name your code instead: --entry module:function, returning (model, optimizer, loss_fn)."
_STEADY_RUN = "STEADYGRAD_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProgram:
    """A Python program to run again. `module` is set where it was started with -m, and `script` otherwise."""

    arguments: tuple[str, ...] = ()
    script: Path | None = None
    module: str | None = None
    folder: Path
    sha256: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command, with the interpreter that runs us: the one of the run may be gone, or someone else's."""
        how = ("-m", self.module) if self.module is not None else (str(self.script),)
        return (sys.executable, *how, *self.arguments)

    @property
    def shown(self) -> str:
        return shlex.join(self.words)

    @property
    def is_as_it_was(self) -> bool:
        """Whether the script is known to be the one that ran, byte for byte."""
        return self.script is not None and self.sha256 is not None and _sha256(self.script) == self.sha256


def recorded_program() -> dict[str, Any]:
    """This process's program as plain data. Reads its script once, to hash it; never raises."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    script = os.path.abspath(file) if isinstance(file, str) and os.path.isfile(file) else None
    arguments = redacted(list(sys.argv))
    return {
        "arguments": arguments[1:],
        "hidden": arguments != list(sys.argv),
        "script": script,
        "module": getattr(spec, "name", None),
        "sha256": _sha256(Path(script)) if script is not None else None,
        "folder": _folder(),
        "python": sys.executable,
        "ranks": _ranks(),
        "supervised": _STEADY_RUN in os.environ,
    }


def program_of(capsule: Path, *, command: str | None = None, changed: bool = False) -> RecordedProgram:
    """What `steady replay` will run for this capsule: the words of `command`, else those that were recorded.

    Raises CapsuleError where that cannot be done, in one sentence with what to do instead. `changed` accepts a script
    that is not the one that ran.
    """
    manifest = read_manifest(capsule)
    check_checksums(capsule, manifest)
    said = manifest.get("program")
    if command is not None:
        return _from_command(command)
    if not isinstance(said, dict):
        raise CapsuleError(f"The capsule in {capsule} does not say which program was running. {ENTRY_HINT}")
    program = _from_record(said)
    if program.module is not None:
        raise CapsuleError(
            f"The program was started as a module. A name found in a capsule is never imported: give the command "
            f"yourself, --command {shlex.quote(shlex.join(('python', *program.words[1:])))}. {ENTRY_HINT}"
        )
    assert program.script is not None
    if not program.script.is_file():
        raise CapsuleError(f"The script {program.script} is no longer there. {ENTRY_HINT}")
    if not program.folder.is_dir():
        raise CapsuleError(f"The directory {program.folder}, in which the script ran, is no longer there. {ENTRY_HINT}")
    if not program.is_as_it_was and not changed:
        raise CapsuleError(
            f"The script {program.script} changed since the step failed. Pass --changed to run the step in the script "
            "as it is now, for example to see whether a fix holds."
        )
    return program


def _from_record(said: Mapping[str, Any]) -> RecordedProgram:
    """The recorded program, as far as it is of the right kind: this is data from a file."""
    arguments, folder = said.get("arguments"), said.get("folder")
    script, module, sha256 = said.get("script"), said.get("module"), said.get("sha256")
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise CapsuleError(f"The capsule's record of its program is corrupt. {ENTRY_HINT}")
    if said.get("supervised"):
        raise CapsuleError(f"The program ran under `steady run`, which replay cannot take over. {ENTRY_HINT}")
    if said.get("ranks", 1) != 1:
        ranks = said.get("ranks")
        raise CapsuleError(f"The program was one of {ranks} ranks, which one process cannot be. {ENTRY_HINT}")
    if said.get("hidden"):
        raise CapsuleError(
            "A word of the command was left out of the capsule because it looks like a secret: give the command "
            f"yourself with --command. {ENTRY_HINT}"
        )
    if not isinstance(folder, str) or not isinstance(script, str):
        raise CapsuleError(f"The step failed in a session with no script, so there is none to run again. {ENTRY_HINT}")
    return RecordedProgram(
        arguments=tuple(arguments),
        script=Path(script),
        module=module if isinstance(module, str) else None,
        folder=Path(folder),
        sha256=sha256 if isinstance(sha256, str) else None,
    )


def _from_command(command: str) -> RecordedProgram:
    """A command that the caller wrote: [python] script.py arguments, or [python] -m module arguments."""
    try:
        words: Sequence[str] = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command cannot be read: {error}.") from error
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if len(words) > 1 and words[0] == "-m":
        return RecordedProgram(module=words[1], arguments=tuple(words[2:]), folder=Path.cwd())
    if not words or words[0].startswith("-"):
        raise UsageError(f"--command is {command!r}: expected a script or -m module, with its arguments.")
    script = Path(words[0]).absolute()
    if not script.is_file():
        raise UsageError(f"--command names the script {words[0]}, and there is none in {Path.cwd()}.")
    return RecordedProgram(script=script, arguments=tuple(words[1:]), folder=Path.cwd())


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _ranks() -> int:
    words = os.environ.get("WORLD_SIZE", "1")
    return int(words) if words.isdigit() else 1
