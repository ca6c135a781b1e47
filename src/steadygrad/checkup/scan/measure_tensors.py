"""Reading the values of many tensors, in pieces, on a few threads.

Memory: one block of half a mebibyte and a few temporaries of its size a thread, however large the file. Reading and
numpy's reductions both let go of Python's lock, so two threads are nearly twice as fast as one.

A file may also be mapped instead of read, 32 MiB at a time, which saves the copy and a third of the time. But a map
over a file that someone cuts short ends in a bus error, so whoever asks for it runs in a child (see child_process.py).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...records.checks.scan import TensorScan
from .file_source import Source
from .formats.float_formats import COMPLEX
from .formats.tensor_span import Blocks, Span
from .value_counts import ValueCounts, count

BLOCK_BYTES = 1 << 19
"""What is read before it is counted: small enough to be still in the cache of its core then."""
PIECE_BYTES = 1 << 25
COUNT_ALL_BYTES = 1 << 24
"""In a tensor up to this size zeros and subnormal values are counted in full, in a larger one in every eighth block."""
SAMPLE_EVERY = 8
MAX_THREADS = 8
Progress = Callable[[int], None]
"""Called with the number of bytes that were just done, from any thread."""


def measure(
    source: Source,
    spans: Sequence[Span],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    mapped: bool = False,
) -> list[TensorScan]:
    """What the values of every span are like, in the order given. Raises Unreadable if the file cannot be read."""
    tallies = [ValueCounts() for _ in spans]
    pieces = _pieces(spans)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def work() -> None:
        buffer = np.empty(BLOCK_BYTES, np.uint8)
        while not failures:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            index, start, length = piece
            found = ValueCounts()
            try:
                if spans[index].kind is not None:
                    _count_piece(source, spans[index], start, length, buffer, found, mapped=mapped)
                if progress is not None:
                    progress(length)
            except BaseException as error:
                failures.append(error)
                return
            with lock:
                tallies[index].add(found)

    number = threads or usable_threads()
    total = sum(span.num_bytes for span in spans)
    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(number, 1 + total // PIECE_BYTES) - 1)]
    for helper in helpers:
        helper.start()
    try:
        work()
    except BaseException as error:
        failures.append(error)  # the helpers stop at their next piece
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    return [_scan_of(span, tally) for span, tally in zip(spans, tallies, strict=True)]


def usable_threads() -> int:
    """As many as this process has cores to run on, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores))


def _pieces(spans: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
    """(index of the span, where the piece starts in it, its length), a whole number of values or blocks each."""
    for index in sorted(range(len(spans)), key=lambda index: spans[index].offset):
        span = spans[index]
        unit = span.blocks.size if span.blocks else 16
        step = PIECE_BYTES // unit * unit
        for start in range(0, span.num_bytes, step):
            yield index, start, min(step, span.num_bytes - start)


def _count_piece(
    source: Source, span: Span, start: int, length: int, buffer: Any, tally: ValueCounts, *, mapped: bool
) -> None:
    kind = span.kind
    assert kind is not None
    if span.blocks is not None:
        _count_scattered(source, span, span.blocks, start, length, buffer, tally)
        return
    every = SAMPLE_EVERY if span.num_bytes > COUNT_ALL_BYTES else 1
    width = kind.width
    if mapped and length >= BLOCK_BYTES and (span.offset + start) % width == 0:
        window = source.window(span.offset + start, length)
        whole, whole_signed, step = window.view(kind.unsigned), window.view(f"<i{width}"), BLOCK_BYTES // width
        for number, begin in enumerate(range(0, len(whole), step)):
            part, signed = whole[begin : begin + step], whole_signed[begin : begin + step]
            count(part, kind, tally, start=start // width + begin, signed=signed, small_ones=number % every == 0)
        return
    values, signed = buffer.view(kind.unsigned), buffer.view(f"<i{width}")
    for number, at in enumerate(range(start, start + length, BLOCK_BYTES)):
        left = start + length - at
        if left < BLOCK_BYTES:
            buffer = buffer[:left]
            values, signed = values[: left // width], signed[: left // width]
        source.fill(buffer, span.offset + at)
        count(values, kind, tally, start=at // width, signed=signed, small_ones=number % every == 0)


def _count_scattered(
    source: Source, span: Span, blocks: Blocks, start: int, length: int, buffer: Any, tally: ValueCounts
) -> None:
    step = BLOCK_BYTES // blocks.size * blocks.size
    for at in range(start, start + length, step):
        read = buffer[: min(step, start + length - at)]
        source.fill(read, span.offset + at)
        found = ValueCounts()
        count(_scattered(read, blocks), blocks.kind, found)
        if found.first_bad is not None:  # a scale stands for its whole block
            found.first_bad = at // blocks.size + found.first_bad // len(blocks.places)
        tally.add(found)


def _scattered(block: Any, blocks: Blocks) -> Any:
    """The scales in a stretch of quantised blocks, side by side."""
    rows = block.reshape(-1, blocks.size)
    if blocks.nibbles:
        at = blocks.places[0]
        words = np.ascontiguousarray(rows[:, at : at + 8]).view("<u2")
        parts = ((words[:, 0] >> 12), (words[:, 1] >> 8) & 0xF0, (words[:, 2] >> 4) & 0xF00, words[:, 3] & 0xF000)
        return np.ascontiguousarray(parts[0] | parts[1] | parts[2] | parts[3])
    columns = [rows[:, at : at + blocks.kind.width] for at in blocks.places]
    return np.ascontiguousarray(np.concatenate(columns, axis=1)).view(blocks.kind.unsigned).reshape(-1)


def _scan_of(span: Span, tally: ValueCounts) -> TensorScan:
    kind = span.kind
    scan = TensorScan(
        name=span.name,
        dtype=span.dtype,
        shape=span.shape,
        num_values=math.prod(span.shape) if kind is None else tally.num_values,
        num_counted=tally.num_counted,
        num_nan=tally.num_nan,
        num_inf=tally.num_inf,
        num_zero=tally.num_zero,
        num_subnormal=tally.num_subnormal,
        num_saturated=tally.num_saturated,
        num_positive_extremes=tally.num_positive_extremes,
        largest=kind.value(tally.largest) if kind is not None and tally.largest >= 0 else 0.0,
        first_bad=_index(span, tally.first_bad),
        also=span.also,
        evidence=span.evidence,
    )
    return scan


def _index(span: Span, place: int | None) -> tuple[int, ...] | None:
    """The coordinates of a value; of a quantised tensor the number of the block, of a view its place in memory."""
    if place is None:
        return None
    if span.dtype in COMPLEX:
        place //= 2
    if span.blocks is not None or not span.in_order or math.prod(span.shape) <= place:
        return (place,)
    found: list[int] = []
    for length in reversed(span.shape):
        place, rest = divmod(place, length)
        found.append(rest)
    return tuple(reversed(found))
