"""Files that torch.save wrote: the zip archive of today, and the row of pickles it was before version 1.6."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from ..file_source import Source, Unreadable
from .pickle_reader import MAX_PICKLE_BYTES, Pickle, Refused, next_pickle, read_pickle
from .pickled_tensors import TensorView, spans_of, strangers, views_in
from .tensor_span import Contents, Span
from .zip_directory import Member, members

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_STRANGERS = 4


def read_torch_zip(source: Source, *, start: int = 0, length: int | None = None, root: str = "") -> Contents:
    """What an archive of torch.save's holds; it may be a part of a file."""
    path = source.path
    found = members(source, start=start, length=length)
    described = [name for name in found if name == "data.pkl" or name.endswith("/data.pkl")]
    if not described:
        raise Unreadable(f"{path} is a zip archive without a data.pkl: torch.save did not write it.")
    name = min(described, key=len)
    base = name.removesuffix("data.pkl")
    order = found.get(f"{base}byteorder")
    if order is not None and source.read(order.offset, min(order.num_bytes, 16)) not in (b"little", b""):
        raise Unreadable(f"{path} was written on a big-endian machine, which is not supported.")
    for member in (name, *(other for other in found if other.startswith(f"{base}data/"))):
        if found[member].compressed:
            raise Unreadable(
                f"{path}: its member {member[:200]!r} is compressed, which torch.save never does: it may unfold into "
                "more than any machine holds, and was not read."
            )
    pickle = _pickle(path, _bytes_of(source, found[name]))
    views = views_in(path, pickle, root)
    places = _places(found, f"{base}data/")
    return Contents(path=path, format="torch", spans=spans_of(path, views, places), notes=_notes(pickle))


def _places(found: Mapping[str, Member], prefix: str) -> dict[str, tuple[int, int]]:
    return {
        name.removeprefix(prefix): (member.offset, member.num_bytes)
        for name, member in found.items()
        if name.startswith(prefix)
    }


def _bytes_of(source: Source, member: Member) -> bytes:
    if member.num_bytes > MAX_PICKLE_BYTES:
        raise Unreadable(f"{source.path}: its pickle has {member.num_bytes:,} bytes: more than any checkpoint's.")
    return source.read(member.offset, member.num_bytes)


def _pickle(path: Path, data: bytes) -> Pickle:
    try:
        return read_pickle(data)
    except Refused as why:
        raise Unreadable(f"{path}: {why}.") from why


def _notes(pickle: Pickle) -> tuple[str, ...]:
    arrays = any(name.name == "_reconstruct" for name in pickle.names)
    unseen = ("it holds NumPy arrays, which were not checked",) if arrays else ()
    found = strangers(pickle)
    if not found:
        return unseen
    names = ", ".join(name[:100] for name in found[:_MAX_STRANGERS])
    more = f" and {len(found) - _MAX_STRANGERS} more" if len(found) > _MAX_STRANGERS else ""
    note = f"loading it would import {names}{more}; torch.load(weights_only=True) refuses that, and nothing was run"
    return (note, *unseen)


def read_torch_legacy(source: Source) -> Contents:
    """What a file of torch.save's from before version 1.6 holds: five pickles, then the storages one after another."""
    path = source.path
    stream = BytesIO(source.read(0, min(source.size, MAX_PICKLE_BYTES)))
    try:
        if next_pickle(stream).value != LEGACY_MAGIC:
            raise Unreadable(f"{path} is a pickle, and not one that torch.save wrote.")
        _, system = next_pickle(stream), next_pickle(stream)
        pickle, keys = next_pickle(stream), next_pickle(stream)
    except Refused as why:
        raise Unreadable(f"{path}: {why}.") from why
    little = getattr(system.value, "get", lambda key: True)("little_endian")
    if little is False:
        raise Unreadable(f"{path} was written on a big-endian machine, which is not supported.")
    views = views_in(path, pickle)
    places = _legacy_places(source, stream.tell(), keys.value, views)
    spans: tuple[Span, ...] = spans_of(path, views, places)
    return Contents(path=path, format="torch, before 1.6", spans=spans, notes=_notes(pickle))


def _legacy_places(source: Source, at: int, keys: Any, views: list[TensorView]) -> dict[str, tuple[int, int]]:
    """Where each storage is. Its length is written as a number of values, so the type must be known to go on."""
    widths = {view.key: view.storage_width for view in views}
    places: dict[str, tuple[int, int]] = {}
    if not isinstance(keys, list):
        raise Unreadable(f"{source.path}: its list of storages is damaged.")
    for key in keys:
        if not isinstance(key, str | bytes | int) or str(key) not in widths:
            raise Unreadable(f"{source.path}: a storage belongs to no tensor, so its length is not known.")
        (number,) = struct.unpack("<q", source.read(at, 8))
        length = number * widths[str(key)]
        if number < 0 or at + 8 + length > source.size:
            raise Unreadable(f"{source.path}: the values of a storage of {length:,} bytes are cut short.")
        places[str(key)] = (at + 8, length)
        at += 8 + length
    return places
