"""The manifest of a capsule: what it is, which version, and whether it is as it was written. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...records.errors import CapsuleError

FORMAT, VERSION = "steadygrad-capsule", 1
MANIFEST = "capsule.json"
MAX_MANIFEST_BYTES = 64 << 20


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in this folder, if it is one that this version reads. Its seal is not checked yet."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise CapsuleError(f"There is no finished capsule in {folder}: {MANIFEST} is missing.")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise CapsuleError(f"{path} is larger than any manifest of ours ({path.stat().st_size:,} bytes).")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CapsuleError(f"{path} is not readable as JSON; the file is torn or not ours.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CapsuleError(f"{path} is not a capsule of steadygrad.")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > VERSION:
        raise CapsuleError(
            f"{path} has format version {manifest.get('version')} and this steadygrad reads up to {VERSION}. "
            "Upgrade to read it."
        )
    return manifest


def check_checksums(folder: Path, manifest: Mapping[str, Any]) -> None:
    """A changed learning rate or shape in the manifest would replay another step than the one that failed."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest.get("sha256") != checksums_of(rest):
        raise CapsuleError(f"The capsule in {folder} is corrupt: its manifest was changed after it was written.")


def checksums_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own seal."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
