"""The header of a safetensors file, read without believing it.

Eight bytes of length, that much JSON, then the tensors. The length, the number of tensors, their shapes and places are
all checked before anything is allocated for them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ..file_source import Source, Unreadable
from .bounded_json import parse_json
from .tensor_span import MAX_BYTES, MAX_NAME, MAX_TENSORS, Contents, Span, check_layout, size_of

MAX_HEADER_BYTES = 32 << 20
MAX_VALUES = 800_000
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64", "BOOL": "bool", "U8": "uint8", "I8": "int8",
    "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
}  # fmt: skip
# Several values share a byte; no pattern of theirs is NaN, so only where they lie has to be right.
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def looks_like_safetensors(start: bytes) -> bool:
    return len(start) > 8 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") >= 2


def read_safetensors(source: Source) -> Contents:
    """What the file holds. Raises Unreadable where the header is cut short or lies."""
    path = source.path
    if source.size < 8:
        raise Unreadable(f"{path} has {source.size} bytes: too short for a safetensors file.")
    (length,) = struct.unpack("<Q", source.read(0, 8))
    if length > MAX_HEADER_BYTES or length > source.size - 8:
        raise Unreadable(
            f"{path}: its header claims {length:,} bytes; the file has {source.size:,}, and a header at most "
            f"{MAX_HEADER_BYTES:,}: it is truncated, or no safetensors file."
        )
    header = _parse(path, source.read(8, length))
    start = 8 + length
    spans = [
        _span(path, name, entry, start)
        for name, entry in header.items()
        if name != "__metadata__"
    ]  # fmt: skip
    check_layout(path, spans, start=start, end=source.size, whole=True)
    return Contents(path=path, format="safetensors", spans=tuple(spans))


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Unreadable(f"{path}: its header names a tensor twice.")
        return made

    try:
        header = parse_json(path, text, max_values=MAX_VALUES, pairs=no_twins)
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"{path}: its header is not JSON: it is damaged, or no safetensors file.") from error
    if not isinstance(header, dict):
        raise Unreadable(f"{path}: its header is not a JSON object: it is damaged, or no safetensors file.")
    if len(header) > MAX_TENSORS:
        raise Unreadable(f"{path} claims {len(header):,} tensors, more than the {MAX_TENSORS:,} allowed.")
    return header


def _span(path: Path, name: str, entry: Any, start: int) -> Span:
    shown = name[:MAX_NAME]
    try:
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path}: the header's entry for tensor {shown!r} is damaged.") from error
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < MAX_BYTES:
        raise Unreadable(f"{path}: tensor {shown!r} has offsets that make no sense.")
    if not isinstance(code, str):
        raise Unreadable(f"{path}: tensor {shown!r} has a type that is no text: its header is damaged.")
    if code in PACKED_BITS:
        expected = size_of(path, shown, "uint8", shape) * PACKED_BITS[code] // 8
        dtype = code.lower()
    elif code in DTYPES:
        dtype = DTYPES[code]
        expected = size_of(path, shown, dtype, shape)
    else:
        raise Unreadable(f"{path}: tensor {shown!r} has the type {code[:40]!r}, which is not known.")
    if end - begin != expected:
        raise Unreadable(
            f"{path}: tensor {shown!r} of shape {list(shape)} takes {expected:,} bytes and its header gives it "
            f"{end - begin:,}: the header lies."
        )
    return Span(name=shown, dtype=dtype, shape=shape, offset=start + begin, num_bytes=end - begin)
