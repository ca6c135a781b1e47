"""The header of a GGUF file: which tensors there are, of which type, and where.

Most of them are quantised: blocks of small integers, each with one or two scales in half precision. An integer cannot
be NaN, and a bad scale spoils its whole block, so of these the scales are what is looked at.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

from ..file_source import Source, Unreadable
from .float_formats import E4M3, E8M0, FLOAT16, FLOAT32
from .tensor_span import MAX_NAME, Blocks, Contents, Span, check_layout, check_shape, size_of

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 128 << 20
MAX_ENTRIES = 100_000
MAX_GGUF_TENSORS = 1 << 16
MAX_TEXT_BYTES = 16 << 20
MAX_VALUES = 1_000_000
_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantised:
    """How many values are in a block, and where in it the scales stand."""

    name: str
    values: int
    blocks: Blocks


def _half(name: str, values: int, size: int, *places: int) -> Quantised:
    return Quantised(name, values, Blocks(size=size, kind=FLOAT16, places=places))


PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
QUANTISED = {
    2: _half("q4_0", 32, 18, 0),
    3: _half("q4_1", 32, 20, 0, 2),
    6: _half("q5_0", 32, 22, 0),
    7: _half("q5_1", 32, 24, 0, 2),
    8: _half("q8_0", 32, 34, 0),
    10: _half("q2_k", 256, 84, 80, 82),
    11: _half("q3_k", 256, 110, 108),
    12: _half("q4_k", 256, 144, 0, 2),
    13: _half("q5_k", 256, 176, 0, 2),
    14: _half("q6_k", 256, 210, 208),
    15: Quantised("q8_k", 256, Blocks(size=292, kind=FLOAT32, places=(0,))),
    16: _half("iq2_xxs", 256, 66, 0),
    17: _half("iq2_xs", 256, 74, 0),
    18: _half("iq3_xxs", 256, 98, 0),
    19: _half("iq1_s", 256, 50, 0),
    20: _half("iq4_nl", 32, 18, 0),
    21: _half("iq3_s", 256, 110, 0),
    22: _half("iq2_s", 256, 82, 0),
    23: _half("iq4_xs", 256, 136, 0),
    29: Quantised("iq1_m", 256, Blocks(size=56, kind=FLOAT16, places=(48,), nibbles=True)),
    34: _half("tq1_0", 256, 54, 52),
    35: _half("tq2_0", 256, 66, 64),
    39: Quantised("mxfp4", 32, Blocks(size=17, kind=E8M0, places=(0,))),
    40: Quantised("nvfp4", 64, Blocks(size=36, kind=E4M3, places=(0, 1, 2, 3))),
    41: _half("q1_0", 128, 18, 0),
}
# Bytes of the scalar types of a header's entries, by their number; 8 is a string and 9 an array.
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Reads forward through a header, in steps of a mebibyte, and never past a limit."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = b""
        self._at = 0
        self.position = 0
        self._num_values = 0

    def skip(self, length: int) -> None:
        """Pass over this many bytes without reading them."""
        self._check(length)
        self._at += length
        self.position += length
        if self._at > len(self._buffer):
            self._buffer, self._at = b"", 0

    def skip_text(self) -> None:
        self.skip(int.from_bytes(self.take(8), "little"))

    def count(self, number: int) -> None:
        """Refuse a header with more values in its lists than any vocabulary has."""
        self._num_values += number
        if self._num_values > MAX_VALUES:
            raise Unreadable(f"{self._source.path}: its header claims lists of {self._num_values:,} values: it lies.")

    def _check(self, length: int) -> None:
        if length < 0 or self.position + length > min(self._source.size, MAX_HEADER_BYTES):
            raise Unreadable(f"{self._source.path}: its header is cut short, or lies about a length.")

    def take(self, length: int) -> bytes:
        self._check(length)
        while len(self._buffer) - self._at < length:
            begin = self.position + len(self._buffer) - self._at
            step = min(max(_STEP, length), self._source.size - begin)
            self._buffer = self._buffer[self._at :] + self._source.read(begin, step)
            self._at = 0
        found = self._buffer[self._at : self._at + length]
        self._at += length
        self.position += length
        return found

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        length = self.number("<Q")
        if length > MAX_TEXT_BYTES:
            raise Unreadable(f"{self._source.path}: its header claims a text of {length:,} bytes.")
        return self.take(length).decode("utf-8", "replace")


def read_gguf(source: Source) -> Contents:
    """What the file holds. Raises Unreadable where the header is cut short or lies."""
    path = source.path
    cursor = _Cursor(source)
    if cursor.take(4) != MAGIC:
        raise Unreadable(f"{path} is no GGUF file.")
    version = cursor.number("<I")
    if version not in (2, 3):
        hint = "it is big-endian" if version in (2 << 24, 3 << 24) else "versions 2 and 3 are read"
        raise Unreadable(f"{path} has GGUF version {version}: {hint}.")
    num_tensors, num_entries = cursor.number("<Q"), cursor.number("<Q")
    if num_tensors > MAX_GGUF_TENSORS or num_entries > MAX_ENTRIES:
        raise Unreadable(f"{path} claims {num_tensors:,} tensors and {num_entries:,} entries: its header lies.")
    alignment = _entries(cursor, num_entries, path)
    infos = [_info(cursor, path) for _ in range(num_tensors)]
    start = -(-cursor.position // alignment) * alignment
    spans, problems = _spans(path, infos, start, source.size)
    check_layout(path, spans, start=min(start, source.size), end=source.size)
    return Contents(path=path, format="gguf", spans=tuple(spans), problems=tuple(problems))


def _entries(cursor: _Cursor, number: int, path: Path) -> int:
    """Pass over the metadata; gives the alignment of the tensors, which is one of its entries."""
    alignment = 32
    for _ in range(number):
        key, kind = cursor.text(), cursor.number("<I")
        if key == "general.alignment" and kind == 4:
            alignment = cursor.number("<I")
            if not 0 < alignment <= 1 << 20:
                raise Unreadable(f"{path}: its header asks for an alignment of {alignment:,}.")
        else:
            _skip(cursor, kind, path)
    return alignment


def _skip(cursor: _Cursor, kind: int, path: Path, depth: int = 0) -> None:
    if kind in _SCALARS:
        cursor.skip(_SCALARS[kind])
    elif kind == _STRING:
        cursor.skip_text()
    elif kind == _ARRAY and depth < 4:
        inner, length = cursor.number("<I"), cursor.number("<Q")
        if inner in _SCALARS:
            cursor.skip(_SCALARS[inner] * length)
            return
        cursor.count(length if inner == _STRING else 100 * length)  # lists of lists are hardly ever written
        for _ in range(length):
            if inner == _STRING:
                cursor.skip_text()
            else:
                _skip(cursor, inner, path, depth + 1)
    else:
        raise Unreadable(f"{path}: its header holds an entry of type {kind}, which is not known.")


def _info(cursor: _Cursor, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.text()[:MAX_NAME], cursor.number("<I")
    if dimensions > 8:
        raise Unreadable(f"{path}: tensor {name!r} claims {dimensions:,} dimensions.")
    # Written fastest dimension first, the other way round from everyone else.
    shape = tuple(reversed([cursor.number("<Q") for _ in range(dimensions)]))
    check_shape(path, name, shape)
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _spans(
    path: Path, infos: list[tuple[str, tuple[int, ...], int, int]], start: int, end: int
) -> tuple[list[Span], list[str]]:
    spans: list[Span] = []
    unknown: dict[int, int] = {}
    for name, shape, kind, offset in infos:
        if kind in PLAIN:
            size, dtype, blocks = size_of(path, name, PLAIN[kind], shape), PLAIN[kind], None
        elif kind in QUANTISED:
            form = QUANTISED[kind]
            num_values = math.prod(shape)
            if num_values % form.values:
                raise Unreadable(f"{path}: tensor {name!r} does not consist of whole blocks: its header lies.")
            size, dtype, blocks = num_values // form.values * form.blocks.size, form.name, form.blocks
        else:
            unknown[kind] = unknown.get(kind, 0) + 1
            if start + offset > end:
                raise Unreadable(f"{path}: tensor {name!r} begins after the end of the file: it is truncated.")
            continue
        spans.append(Span(name=name, dtype=dtype, shape=shape, offset=start + offset, num_bytes=size, blocks=blocks))
    kinds = ", ".join(f"type {kind} ({number:,})" for kind, number in sorted(unknown.items())[:8])
    number = sum(unknown.values())
    problem = f"{path}: {number:,} tensors have a GGML type that is not known here, {kinds}, and were not checked."
    return spans, [problem] if unknown else []
