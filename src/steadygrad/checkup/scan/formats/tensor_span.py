"""Where a tensor's bytes lie in a file, and how to read them. Every format ends in a list of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..file_source import Unreadable
from .float_formats import FloatKind, bytes_a_value, float_kind

MAX_TENSORS = 200_000
MAX_NAME = 1000
MAX_DIMENSIONS = 64
MAX_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Values that lie scattered: in every `size` bytes there is one of `kind` at each place in `places`.

    `nibbles` is for the one format that hides a half-precision scale in the high nibbles of four 16-bit words, the
    first of which is at `places[0]`.
    """

    size: int
    kind: FloatKind
    places: tuple[int, ...]
    nibbles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A tensor as a stretch of a file. `blocks` is None where values stand side by side."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    blocks: Blocks | None = None
    also: int = 0
    evidence: bool = False
    in_order: bool = True
    """Whether the values lie in the order of the shape; a transposed view's do not."""

    @property
    def kind(self) -> FloatKind | None:
        return self.blocks.kind if self.blocks else float_kind(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file was found to hold before any value was read."""

    path: Path
    format: str
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What in the file could not be looked at, though the rest could."""


def size_of(path: Path, name: str, dtype: str, shape: Sequence[int]) -> int:
    """How many bytes a tensor must take, refusing shapes that make no sense."""
    width = bytes_a_value(dtype)
    if width is None:
        raise Unreadable(f"{path}: tensor {name!r} has the type {dtype!r}, which is not known.")
    check_shape(path, name, shape)
    return width * math.prod(shape)


def check_shape(path: Path, name: str, shape: Sequence[int]) -> None:
    if len(shape) > MAX_DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
        raise Unreadable(f"{path}: tensor {name!r} has a shape that makes no sense.")
    if math.prod(shape) >= MAX_BYTES:
        raise Unreadable(f"{path}: tensor {name!r} claims more values than any file can hold.")


def check_layout(path: Path, spans: Sequence[Span], *, start: int, end: int, whole: bool = False) -> None:
    """Every stretch lies between `start` and `end` and no two of them share a byte; with `whole`, none is left over."""
    reached, before = start, ""
    for span in sorted(spans, key=lambda span: (span.offset, span.num_bytes)):
        if span.offset < start or span.offset + span.num_bytes > end:
            raise Unreadable(
                f"{path}: tensor {span.name!r} is said to end at byte {span.offset + span.num_bytes:,} and the file "
                f"ends at {end:,}: it is truncated or its header lies."
            )
        if span.num_bytes and span.offset < reached:
            raise Unreadable(f"{path}: tensors {before!r} and {span.name!r} overlap: its header lies.")
        if whole and span.num_bytes and span.offset > reached:
            raise _left_over(path, reached, span.offset)
        if span.num_bytes:
            reached, before = span.offset + span.num_bytes, span.name
    if whole and reached < end:
        raise _left_over(path, reached, end)


def _left_over(path: Path, begin: int, end: int) -> Unreadable:
    return Unreadable(
        f"{path}: the bytes from {begin:,} to {end:,} belong to no tensor, so they cannot be checked: it is damaged or "
        "its header lies."
    )
