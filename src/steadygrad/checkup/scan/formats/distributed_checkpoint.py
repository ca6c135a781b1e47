"""torch's distributed checkpoints: a `.metadata` that says which part of which tensor lies where in `*.distcp`.

Every part is its own torch.save archive. The metadata is a pickle, and loading it the usual way runs
whatever it asks for; here it is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..file_source import Source, Unreadable
from ..natural_order import natural
from .pickle_reader import MAX_PICKLE_BYTES, Called, Pairs, PickledName, Refused, read_pickle
from .tensor_span import MAX_NAME, MAX_TENSORS, Contents, Span
from .torch_file import read_torch_zip

METADATA = ".metadata"
_INFO = "_StorageInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of one entry of a checkpoint: where its archive lies."""

    name: str
    file: str
    offset: int
    length: int


def parts(metadata: Path) -> list[Part]:
    """Every part a distributed checkpoint consists of. Raises Unreadable."""
    with Source(metadata) as source:
        if source.size > MAX_PICKLE_BYTES:
            raise Unreadable(f"{metadata} has {source.size:,} bytes: more than any checkpoint's metadata.")
        try:
            value = read_pickle(source.read(0, source.size)).value
        except Refused as why:
            raise Unreadable(f"{metadata}: {why}.") from why
    state = value.state if isinstance(value, Called) else None
    places = state.get("storage_data") if isinstance(state, Pairs) else None
    if not isinstance(places, Pairs):
        raise Unreadable(f"{metadata} does not describe a distributed checkpoint.")
    if len(places.pairs) > MAX_TENSORS:
        raise Unreadable(f"{metadata} describes {len(places.pairs):,} parts: more than any checkpoint has.")
    return [_part(metadata, index, info) for index, info in places.pairs]


def _part(metadata: Path, index: Any, info: Any) -> Part:
    name, where = _field(index, "fqn"), _field(info, "relative_path")
    offset, length = _field(info, "offset"), _field(info, "length")
    numbers = type(offset) is int and type(length) is int and offset >= 0 and length >= 0
    named = isinstance(info, Called) and isinstance(info.what, PickledName) and info.what.name == _INFO
    if not isinstance(name, str) or not isinstance(where, str) or not numbers or not named:
        shown = name[:MAX_NAME] if isinstance(name, str) else "?"
        raise Unreadable(f"{metadata}: its entry for {shown!r} is damaged, or of a kind not known here.")
    if where in ("", ".", "..") or "/" in where or "\\" in where or "\0" in where:
        raise Unreadable(f"{metadata} names the file {where[:200]!r}, which is not in its own folder: it was not read.")
    return Part(name=name[:MAX_NAME], file=where, offset=offset, length=length)


def _field(value: Any, name: str) -> Any:
    state = value.state if isinstance(value, Called) else None
    return state.get(name) if isinstance(state, Pairs) else None


def contents_by_file(folder: Path, found: list[Part]) -> Iterator[tuple[Path, list[Part]]]:
    """The parts, gathered by the file they lie in."""
    by_file: dict[str, list[Part]] = {}
    for part in found:
        by_file.setdefault(part.file, []).append(part)
    for name in sorted(by_file, key=natural):
        yield folder / name, by_file[name]


def read_parts(source: Source, found: list[Part]) -> Contents:
    """The tensors in the parts of one file."""
    spans: list[Span] = []
    notes: list[str] = []
    strange: list[str] = []
    reached = 0
    for part in sorted(found, key=lambda part: part.offset):
        if part.offset + part.length > source.size:
            raise Unreadable(f"{source.path}: {part.name!r} lies beyond the end of the file: it is truncated.")
        if part.offset < reached:
            raise Unreadable(f"{source.path}: {part.name!r} overlaps the part before it: the metadata lies.")
        reached = part.offset + part.length
        if source.read(part.offset, min(4, part.length)) != b"PK\x03\x04":
            strange.append(part.name)
            continue
        contents = read_torch_zip(source, start=part.offset, length=part.length, root=part.name)
        spans.extend(contents.spans)
        notes.extend(note for note in contents.notes if note not in notes)
    problem = (
        f"{source.path}: {len(strange):,} parts are not stored as torch.save does, and were not checked: {strange[:1]}."
    )
    return Contents(
        path=source.path, format="torch distributed", spans=tuple(spans), notes=tuple(notes),
        problems=(problem,) if strange else (),
    )  # fmt: skip
