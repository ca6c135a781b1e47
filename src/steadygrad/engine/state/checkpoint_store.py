"""Last good states on disk: `snapshots/step-00001000/{state.safetensors,state.json}`.

Written into a temporary directory, synced, then renamed: a checkpoint is there whole or not at all. Its manifest
holds the hash of the tensors, and exists only if everything was finite, so the newest one that verifies is a good one.
Rotation removes the oldest and never the last good one; nothing that we did not write is ever removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...records.errors import UsageError
from .safetensors_packing import pack, unpack
from .training_state import TrainingState, Tree, non_finite

logger = logging.getLogger("steadygrad")
FORMAT = 1
_NAME = re.compile(r"^step-(\d{8})(?:-(\d+))?$")
_PARTIAL = ".partial-"
NEVER = 1 << 62
_MAX_MANIFEST_BYTES = 64 << 20


class CheckpointStore:
    """Atomic checkpoints of one run."""

    def __init__(self, directory: Path, state: TrainingState, *, every: int, keep: int = 3) -> None:
        if every < 1 or keep < 1:
            raise UsageError("checkpoint_every and keep_checkpoints must be at least 1.")
        self.every = every
        self._directory = directory
        self._state = state
        self._keep = keep

    def save(self, step: int, log: dict[str, Any]) -> Path | None:
        """Write the state before this step, with the guard's books. None, and a warning, if it is not finite.

        Reads the device and waits for the disk.
        """
        bad = non_finite(self._state.floating_tensors())
        if bad:
            logger.warning("no checkpoint at step %d: %s not finite", step, ", ".join(bad[:3]))
            return None
        from safetensors.torch import save_file

        data, tensors = pack({"state": self._state.live(), "books": log})
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()
        final = self._directory / self._free_name(step)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._directory))
        try:
            save_file(tensors, partial / "state.safetensors")
            manifest = {"format": FORMAT, "step": step, "sha256": _sha256(partial / "state.safetensors"), "data": data}
            (partial / "state.json").write_text(json.dumps(manifest), encoding="utf-8")
            for path in (*partial.iterdir(), partial):
                _sync(path)
            os.rename(partial, final)
            _sync(self._directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._rotate()
        return final

    def load_newest(self, *, at_most: int | None = None) -> tuple[int, Tree, dict[str, Any]] | None:
        """Step, state and books of the newest checkpoint that is whole; damaged ones are passed over, with a word.

        With `at_most`, of those up to that step.
        """
        for path in reversed([path for path in self._all() if at_most is None or _order(path)[0] <= at_most]):
            try:
                return self._load(path)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError) as why:
                logger.warning("checkpoint %s cannot be used (%s); trying the one before it", path.name, why)
        return None

    def _load(self, path: Path) -> tuple[int, Tree, dict[str, Any]]:
        from safetensors.torch import load_file

        manifest_path = path / "state.json"
        if manifest_path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ValueError("its manifest is too large")
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("its manifest is not one")
        if manifest.get("format") != FORMAT:
            raise ValueError(f"it has format {manifest.get('format')}, this version reads {FORMAT}")
        if _sha256(path / "state.safetensors") != manifest["sha256"]:
            raise ValueError("its tensors do not match their hash")
        tree = unpack(manifest["data"], load_file(path / "state.safetensors"))
        return int(manifest["step"]), tree["state"], tree["books"]

    def _all(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        found = [path for path in self._directory.iterdir() if _NAME.match(path.name) and not path.is_symlink()]
        return sorted(found, key=_order)

    def _free_name(self, step: int) -> str:
        """A step saved again gets its own name, so that the old one stays whole until the new one is."""
        again = [_order(path)[1] for path in self._all() if _order(path)[0] == step]
        return f"step-{step:08d}-{max(again) + 1}" if again else f"step-{step:08d}"

    def _sweep(self) -> None:
        """Remove what a killed writer of ours left half done. A run directory has one writer at a time."""
        for path in self._directory.iterdir():
            if path.name.startswith(_PARTIAL) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def _rotate(self) -> None:
        for path in self._all()[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.match(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
