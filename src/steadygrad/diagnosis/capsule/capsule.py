"""A failing step in a box: weights, moments, micro-batches and random numbers, enough to run it again elsewhere.

    incidents/0001/capsule.safetensors   every tensor
    incidents/0001/capsule.json          what they are, what ran, and the SHA-256 of the file above

The manifest is written last, so a capsule without one was never finished. Reading one runs no code, follows no path
and imports no name found inside it: the two file names are fixed, tensors come through safetensors, and everything
is checked against the manifest before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ... import __version__
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import named_tensors_in
from ...engine.state.safetensors_packing import pack, unpack
from ...journal.run_directory import redacted
from ...records.errors import CapsuleError, UsageError
from ...records.plain_data import to_plain
from .manifest import FORMAT, MANIFEST, VERSION, check_checksums, checksums_of, read_manifest
from .recorded_program import recorded_program

TENSORS = "capsule.safetensors"
MAX_BYTES = 8 << 30
BATCH_MODES = ("keep", "redact", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capsule:
    """What came out of the box. `batches` is None where they were redacted or left out on purpose."""

    step: int
    state: Any
    batches: list[Any] | None
    facts: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shapes: list[dict[str, Any]] | None = None
    """Of a redacted capsule: shape and dtype of every tensor of every micro-batch, by its key."""


def write_capsule(
    folder: Path,
    *,
    step: int,
    state: Any,
    batches: Sequence[Any],
    facts: Mapping[str, Any] | None = None,
    batch: str = "keep",
    max_bytes: int = MAX_BYTES,
) -> Path:
    """Write the capsule of one step; gives the path of its manifest. Copies every tensor to the host.

    Args:
        folder: the incident's own folder; made if missing.
        state: a tree of tensors and plain values, as the training state gives it.
        batch: "keep", "redact" (shapes and dtypes only) or "off".
        max_bytes: refuse to write more than this; a run directory must not fill the disk.
    """
    if batch not in BATCH_MODES:
        raise UsageError(f"batch is {batch!r}: expected one of {', '.join(BATCH_MODES)}.")
    kept = list(batches) if batch == "keep" else None
    tree, tensors = pack({"state": state, "batches": kept})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > max_bytes:
        raise CapsuleError(
            f"The capsule of step {step} would take {size:,} bytes and the limit is {max_bytes:,}. "
            "Raise max_bytes, or pass batch='off' if the batch is the large part."
        )
    folder.mkdir(parents=True, exist_ok=True)
    blob = folder / TENSORS
    _write_atomically(blob, lambda path: save_file(tensors, path))
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "written": time.time(),
        "versions": versions(),
        "command": redacted(list(sys.argv)),
        "program": recorded_program(),
        "facts": to_plain(dict(facts or {})),
        "batch": batch,
        "shapes": _shapes(batches) if batch == "redact" else None,
        "blobs": [{"file": TENSORS, "bytes": blob.stat().st_size, "sha256": _sha256(blob), "tensors": len(tensors)}],
        "tree": tree,
    }
    manifest["sha256"] = checksums_of(manifest)
    text = json.dumps(manifest, allow_nan=False)
    _write_atomically(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))
    return folder / MANIFEST


def read_capsule(folder: Path, *, max_bytes: int = MAX_BYTES) -> Capsule:
    """Open a capsule from anyone. Says in one sentence why it cannot be used, if so."""
    manifest = read_manifest(folder)
    blob = _checked_blob(folder, manifest, max_bytes)
    check_checksums(folder, manifest)
    try:
        tensors = load_file(blob)
        tree = unpack(manifest["tree"], tensors)
        state, batches = tree["state"], tree["batches"]
        step, found = int(manifest["step"]), dict(manifest["versions"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise CapsuleError(f"The capsule in {folder} is corrupt ({type(error).__name__}: {error}).") from error
    notes = tuple(
        f"written with {name} {found[name]}, read with {now}"
        for name, now in versions().items()
        if found.get(name, now) != now
    )
    command = manifest.get("command")
    facts = manifest.get("facts")
    return Capsule(
        step=step,
        state=state,
        batches=batches if isinstance(batches, list) else None,
        facts=facts if isinstance(facts, dict) else {},
        command=tuple(str(word) for word in command) if isinstance(command, list) else (),
        versions={str(key): str(value) for key, value in found.items()},
        notes=notes,
        shapes=manifest.get("shapes"),
    )


def versions() -> dict[str, str]:
    """What the numbers in a capsule depend on."""
    return {"steadygrad": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _checked_blob(folder: Path, manifest: Mapping[str, Any], max_bytes: int) -> Path:
    """The tensor file, after its size and its hash have been compared with the manifest."""
    blob = folder / TENSORS
    entries = manifest.get("blobs")
    entry = entries[0] if isinstance(entries, list) and len(entries) == 1 and isinstance(entries[0], dict) else {}
    if entry.get("file") != TENSORS:
        raise CapsuleError(f"The manifest in {folder} names another file than {TENSORS}.")
    if not blob.is_file() or blob.is_symlink():
        raise CapsuleError(f"{blob} is missing.")
    size = blob.stat().st_size
    if size > max_bytes:
        raise CapsuleError(f"{blob} has {size:,} bytes and the limit is {max_bytes:,}. Raise max_bytes to read it.")
    if size != entry.get("bytes"):
        raise CapsuleError(
            f"{blob} has {size:,} bytes and should have {entry.get('bytes')}: it is truncated or was changed."
        )
    if _sha256(blob) != entry.get("sha256"):
        raise CapsuleError(f"{blob} is not the file that was written: its SHA-256 differs from the manifest.")
    return blob


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shapes(batches: Sequence[Any]) -> list[dict[str, Any]]:
    return [{key: {"shape": list(v.shape), "dtype": str(v.dtype)} for key, v in named_tensors_in(b)} for b in batches]


def _write_atomically(path: Path, write: Any) -> None:
    """Whole or not at all: written beside, flushed to disk, then renamed."""
    beside = path.with_name(path.name + ".part")
    try:
        write(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        # A full disk must not be left fuller.
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
