"""The table of contents of a zip archive, for archives whose members are stored as they are.

torch.save never compresses, so a compressed member is never opened: kilobytes could unfold into terabytes. Sizes and
places are checked against the archive's own before they are used. The archive may be a part of a larger file, as in
torch's distributed checkpoints.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..file_source import Source, Unreadable
from .tensor_span import MAX_TENSORS

_END, _END64_LOCATOR, _END64, _ENTRY, _LOCAL = (
    b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06", b"PK\x01\x02", b"PK\x03\x04",
)  # fmt: skip
_END_FORM = struct.Struct("<4s4H2IH")
_END64_FORM = struct.Struct("<4sQ2H2I4Q")
_ENTRY_FORM = struct.Struct("<4s6H3I5H2I")
_LOCAL_FORM = struct.Struct("<4s5H3I2H")
_MAX_COMMENT = 1 << 16
MAX_DIRECTORY_BYTES = 64 << 20
MAX_MEMBERS = MAX_TENSORS + 1000


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member's bytes begin in the file, and how many there are. One that is compressed is not to be opened."""

    offset: int
    num_bytes: int
    compressed: bool = False


def members(source: Source, *, start: int = 0, length: int | None = None) -> dict[str, Member]:
    """Every member of the archive at this place by its name. Raises Unreadable where it is damaged or lies."""
    path = source.path
    end = source.size if length is None else start + length
    count, size, offset = _end_record(source, start, end)
    if size > MAX_DIRECTORY_BYTES or count > MAX_MEMBERS:
        raise Unreadable(f"{path}: its table of contents claims {count:,} members: more than any checkpoint has.")
    if start + offset + size > end:
        raise Unreadable(f"{path}: its table of contents lies outside of the file: it is truncated or damaged.")
    table = source.read(start + offset, size)
    found: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        name, member, at = _entry(source, table, at, start, start + offset)
        if name in found:
            raise Unreadable(f"{path}: its table of contents names {name[:200]!r} twice.")
        found[name] = member
    reached = start
    for member in sorted(found.values(), key=lambda member: (member.offset, member.num_bytes)):
        if member.offset < reached and member.num_bytes:
            raise Unreadable(f"{path}: two of its members overlap: its table of contents lies.")
        reached = max(reached, member.offset + member.num_bytes)
    return found


def _end_record(source: Source, start: int, end: int) -> tuple[int, int, int]:
    """(number of members, bytes of the directory, where it begins), from the record at the end of the archive."""
    tail_start = max(start, end - _END_FORM.size - _MAX_COMMENT)
    tail = source.read(tail_start, end - tail_start)
    at = tail.rfind(_END)
    if at < 0 or at + _END_FORM.size > len(tail):
        raise Unreadable(f"{source.path} has no table of contents at its end: it is truncated.")
    _, _, _, _, count, size, offset, _ = _END_FORM.unpack_from(tail, at)
    if 0xFFFF not in (count,) and 0xFFFFFFFF not in (size, offset):
        return count, size, offset
    locator = tail_start + at - 20
    if locator < start or source.read(locator, 4) != _END64_LOCATOR:
        return count, size, offset
    (place,) = struct.unpack("<Q", source.read(locator + 8, 8))
    if start + place + _END64_FORM.size > locator:
        raise Unreadable(f"{source.path}: its table of contents is damaged.")
    magic, *_, count, size, offset = _END64_FORM.unpack(source.read(start + place, _END64_FORM.size))
    if magic != _END64:
        raise Unreadable(f"{source.path}: its table of contents is damaged.")
    return count, size, offset


def _entry(source: Source, table: bytes, at: int, start: int, end: int) -> tuple[str, Member, int]:
    damaged = Unreadable(f"{source.path}: its table of contents is damaged.")
    if at + _ENTRY_FORM.size > len(table):
        raise damaged
    magic, _, _, flags, method, _, _, _, packed, size, n_name, n_extra, n_comment, _, _, _, offset = (
        _ENTRY_FORM.unpack_from(table, at)
    )
    at += _ENTRY_FORM.size
    if magic != _ENTRY or at + n_name + n_extra + n_comment > len(table):
        raise damaged
    name = table[at : at + n_name].decode("utf-8", "replace")
    packed, size, offset = _wide(table[at + n_name : at + n_name + n_extra], packed, size, offset)
    at += n_name + n_extra + n_comment
    if flags & 1:
        raise Unreadable(f"{source.path}: its member {name[:200]!r} is encrypted.")
    if start + offset + _LOCAL_FORM.size > end:
        raise damaged
    local = _LOCAL_FORM.unpack(source.read(start + offset, _LOCAL_FORM.size))
    data = start + offset + _LOCAL_FORM.size + local[-2] + local[-1]
    if local[0] != _LOCAL or data + packed > end:
        raise Unreadable(f"{source.path}: its member {name[:200]!r} lies outside of the file: it is truncated or lies.")
    return name, Member(data, packed, compressed=method != 0 or packed != size), at


def _wide(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int, int]:
    """The 64-bit values of what did not fit into 32 bits: they stand in an extra field, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            numbers = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            size = next(numbers, size) if size == 0xFFFFFFFF else size
            packed = next(numbers, packed) if packed == 0xFFFFFFFF else packed
            offset = next(numbers, offset) if offset == 0xFFFFFFFF else offset
        at += 4 + length
    return packed, size, offset
