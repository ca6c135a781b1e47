"""From a path to what is to be scanned: single files, shards with an index, distributed checkpoints, folders of these.

What a file is, its first bytes say and not its name; names only decide what in a folder is worth opening. A folder is
searched to a bounded depth; links to files are followed, because model caches consist of them, links to folders not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .file_source import Source, Unreadable
from .formats.bounded_json import parse_json
from .formats.distributed_checkpoint import METADATA, Part, contents_by_file, parts, read_parts
from .formats.gguf_file import MAGIC as GGUF_MAGIC
from .formats.gguf_file import read_gguf
from .formats.safetensors_file import looks_like_safetensors, read_safetensors
from .formats.steadygrad_names import with_our_names
from .formats.tensor_span import MAX_TENSORS, Contents
from .formats.torch_file import ZIP_MAGIC, read_torch_legacy, read_torch_zip
from .natural_order import natural

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".gguf")
INDEX_SUFFIX = ".index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_DEPTH = 8
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One file to scan. `parts` is given for a file of a distributed checkpoint, `expected` for a shard of an index.

    Files of one model have the same `model`: the index or metadata that names them.
    `problem` is set instead where there is nothing to open, and says why. `sure` is False for a file that was only
    found by its name, such as a `.bin`, which may be anything.
    """

    path: Path
    parts: tuple[Part, ...] | None = None
    expected: frozenset[str] = field(default_factory=frozenset)
    problem: str | None = None
    sure: bool = True
    model: Path | None = None


def targets(path: Path) -> Iterator[Target]:
    """Everything to scan at a path, problems among them. Opens indexes and metadata, and no tensor file."""
    try:
        folder, there = path.is_dir(), path.exists()
    except OSError as error:
        yield Target(path=path, problem=f"{path} cannot be looked at: {(error.strerror or 'error').lower()}.")
        return
    if not there:
        yield Target(path=path, problem=f"{path} does not exist.")
    elif folder:
        found = list(_in_folder(path, MAX_DEPTH))
        if not found:
            kinds = ", ".join(SUFFIXES)
            found = [Target(path=path, problem=f"{path} holds no checkpoint: no {kinds} or .distcp is in it.")]
        yield from found[:MAX_FILES]
    elif path.name.endswith(INDEX_SUFFIX):
        yield from _index_targets(path)
    elif path.name == METADATA:
        yield from _distributed_targets(path)
    elif path.suffix == ".distcp":
        yield from _distributed_targets(path.parent / METADATA, only=path.name)
    else:
        yield Target(path=path)


def _in_folder(folder: Path, depth: int) -> Iterator[Target]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: natural(entry.name))
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        names = [entry.name for entry in entries if entry.is_file() or entry.is_symlink()]
    except OSError as error:
        yield Target(path=folder, problem=f"{folder} cannot be looked into: {(error.strerror or 'error').lower()}.")
        return
    taken: set[str] = set()
    for name in names:
        if name.endswith(INDEX_SUFFIX):
            for target in _index_targets(folder / name):
                taken.add(target.path.name)
                yield target
    if METADATA in names:
        yield from _distributed_targets(folder / METADATA)
    elif any(name.endswith(".distcp") for name in names):
        yield Target(path=folder, problem=f"{folder} holds .distcp files and no {METADATA}: the save was not finished.")
    for name in names:
        if name.endswith(SUFFIXES) and not name.startswith(".") and name not in taken:
            yield Target(path=folder / name, sure=False)
    if depth:
        for name in folders:
            if not name.startswith("."):
                yield from _in_folder(folder / name, depth - 1)


def _index_targets(path: Path) -> Iterator[Target]:
    try:
        shards = _shards(path)
    except Unreadable as why:
        yield Target(path=path, problem=str(why))
        return
    for name, tensors in sorted(shards.items(), key=lambda entry: natural(entry[0])):
        shard = path.parent / name
        missing = f"{path} names the shard {name[:200]}, which is missing: {len(tensors):,} tensors are not there."
        yield Target(path=shard, expected=frozenset(tensors), problem=None if _is_there(shard) else missing, model=path)


def _is_there(path: Path) -> bool:
    """Whether a file a stranger named exists; a name that no file can have does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _shards(path: Path) -> dict[str, list[str]]:
    """Which shard holds which tensors, by an index that may come from a stranger."""
    with Source(path) as source:
        if source.size > MAX_INDEX_BYTES:
            raise Unreadable(f"{path} has {source.size:,} bytes: more than any index.")
        text = source.read(0, source.size)
    try:
        index: Any = parse_json(path, text, max_values=MAX_TENSORS + 1000)
        places = index["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise TypeError
    except Unreadable:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"{path} is not an index of shards: it is damaged, or holds no weight_map.") from error
    shards: dict[str, list[str]] = {}
    for tensor, name in places.items():
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise Unreadable(f"{path} names the shard {name[:200]!r}, which is not in its own folder: it was not read.")
        shards.setdefault(name, []).append(tensor)
    return shards


def _distributed_targets(metadata: Path, only: str | None = None) -> Iterator[Target]:
    try:
        found = parts(metadata)
    except Unreadable as why:
        yield Target(path=metadata, problem=str(why))
        return
    for path, inside in contents_by_file(metadata.parent, found):
        if only is None or path.name == only:
            missing = f"{metadata} names {path.name[:200]}, which is missing: {len(inside):,} parts are not there."
            yield Target(path=path, parts=tuple(inside), problem=None if _is_there(path) else missing, model=metadata)


def open_contents(source: Source, target: Target) -> Contents | None:
    """What a file holds, by its first bytes; None for one that was only found by its name and is something else."""
    if target.parts is not None:
        return read_parts(source, list(target.parts))
    start = source.read(0, min(16, source.size))
    if start.startswith(GGUF_MAGIC):
        return read_gguf(source)
    if start.startswith(ZIP_MAGIC):
        return read_torch_zip(source)
    if looks_like_safetensors(start) or target.path.suffix == ".safetensors":
        return with_our_names(read_safetensors(source))
    if start[:1] == b"\x80":
        return read_torch_legacy(source)
    if target.path.suffix == ".gguf":
        raise Unreadable(f"{target.path} is no GGUF file: it does not begin like one.")
    if not start:
        raise Unreadable(f"{target.path} is empty.")
    if target.sure or target.path.suffix != ".bin":
        raise Unreadable(f"{target.path} is in no format that is known here: its first bytes are {start[:8]!r}.")
    return None
