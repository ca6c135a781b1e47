"""The frames of an Arrow IPC stream, walked without trusting them.

A stream is a row of messages: four 0xFF bytes, the length of the metadata, the metadata (a flatbuffer), the body. A
writer that was killed leaves the last one incomplete; this finds where the whole ones end. It also adds up what the
compressed buffers claim to hold, so that a few kilobytes from a stranger cannot unfold into terabytes. Nothing here
decodes a value: that is left to pyarrow, on frames that passed.

Only the handful of flatbuffer fields needed are read. Every offset is checked by `struct`, which refuses to read
outside the buffer it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\0\0\0\0"
SCHEMA, RECORD_BATCH = 1, 3
# Slots of the tables in Arrow's Message.fbs, in their order there.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3


@dataclass(frozen=True, slots=True)
class IpcFrame:
    """One whole message: its bytes are data[start:end]. `unpacked` is how many bytes its body claims to hold."""

    kind: int
    start: int
    end: int
    unpacked: int


def frames(data: bytes) -> Iterator[IpcFrame]:
    """The whole messages at the start of `data`, stopping at the end of the stream or at the first torn one."""
    start = 0
    while start + 8 <= len(data) and data[start : start + 4] == CONTINUATION:
        (metadata_length,) = struct.unpack_from("<i", data, start + 4)
        body = start + 8 + metadata_length
        if metadata_length <= 0 or body > len(data):
            return
        metadata = data[start + 8 : body]
        try:
            frame = _frame(metadata, data, start, body)
        except (struct.error, IndexError, OverflowError):
            return
        if frame is None:
            return
        yield frame
        start = frame.end


def _frame(metadata: bytes, data: bytes, start: int, body: int) -> IpcFrame | None:
    (root,) = struct.unpack_from("<I", metadata, 0)
    kind = _scalar(metadata, root, _HEADER_TYPE, "<B")
    body_length = _scalar(metadata, root, _BODY_LENGTH, "<q")
    end = body + body_length
    if body_length < 0 or end > len(data):
        return None
    unpacked = body_length
    if kind == RECORD_BATCH:
        header = _target(metadata, root, _HEADER)
        if header is None:
            return None
        if _target(metadata, header, _COMPRESSION) is not None:
            unpacked = _unpacked(metadata, header, data, body, body_length)
    return IpcFrame(kind, start, end, unpacked)


def _unpacked(metadata: bytes, header: int, data: bytes, body: int, body_length: int) -> int:
    """The sum of the lengths written before each compressed buffer; -1 there means stored as it is."""
    vector = _target(metadata, header, _BUFFERS)
    if vector is None:
        return 0
    (count,) = struct.unpack_from("<I", metadata, vector)
    if count * 16 > len(metadata):
        raise IndexError("more buffers than the metadata can describe")
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)
        if offset < 0 or length < 0 or offset + length > body_length:
            raise IndexError("a buffer outside the body")
        if length >= 8:
            (claimed,) = struct.unpack_from("<q", data, body + offset)
            total += length if claimed == -1 else abs(claimed)
    return total


def _position(buffer: bytes, table: int, slot: int) -> int | None:
    """Where the value of a table's slot lies, or None if the writer left it out."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    if vtable < 0:
        raise IndexError("a table that starts before its buffer")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * slot)
    return table + offset if offset else None


def _scalar(buffer: bytes, table: int, slot: int, form: str) -> int:
    position = _position(buffer, table, slot)
    return 0 if position is None else int(struct.unpack_from(form, buffer, position)[0])


def _target(buffer: bytes, table: int, slot: int) -> int | None:
    position = _position(buffer, table, slot)
    return None if position is None else position + int(struct.unpack_from("<I", buffer, position)[0])
