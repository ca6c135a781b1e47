"""One row a step as Arrow columns: the schema, records to a batch, a batch to records.

Only plain types, so that polars, DuckDB and pandas open a segment with no help. What is the same in every row (the
run, the names of the tensors) stands once in the schema's metadata. Numbers are kept exactly, with one exception:
per-tensor norms of unremarkable steps are rounded to 11 significant bits (0.05 %), which halves the journal; those of
a flagged or refused step are kept to float32.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...records import StepRecord
from ...records.errors import JournalError

STEPS_FORMAT = "steadygrad-steps"
STEPS_VERSION = 1
MAX_TEXT = 4096
NORM_BITS = 10  # of the mantissa, beside the implied one

FIELDS: tuple[tuple[str, Any], ...] = (
    ("step", pa.int64()),
    ("attempt", pa.int32()),
    ("rank", pa.int32()),
    ("time", pa.float64()),
    ("batch_key", pa.string()),
    ("loss", pa.float64()),
    ("grad_norm", pa.float64()),
    ("lr", pa.float64()),
    ("loss_scale", pa.float64()),
    ("applied", pa.bool_()),
    ("rung", pa.int16()),
    ("flags", pa.list_(pa.string())),
    ("terms", pa.map_(pa.string(), pa.float64())),
    ("norms", pa.list_(pa.float32())),
)
SCHEMA = pa.schema(FIELDS)
_CODES = {"int64": "q", "int32": "i", "int16": "h", "double": "d"}

Row = tuple[Any, ...]
"""A record's values in the order of FIELDS, norms being an array of doubles or None where they are not kept, and last
the names those norms go by."""


def schema_of(*, run_id: str, rank: int, names: Sequence[str], segment: int) -> Any:
    """The schema of one segment, with what does not change from row to row in its metadata."""
    about = {
        "steadygrad.format": STEPS_FORMAT,
        "steadygrad.version": str(STEPS_VERSION),
        "steadygrad.run": run_id,
        "steadygrad.rank": str(rank),
        "steadygrad.segment": str(segment),
        "steadygrad.names": json.dumps([name[:MAX_TEXT] for name in names]),
    }
    return SCHEMA.with_metadata(about)


def row_of(record: StepRecord, names: tuple[str, ...], *, norms: bool) -> Row:
    """What is kept of a record. A few microseconds on the training thread: no conversion, one copy of the norms if
    they are kept, so that the caller may reuse its buffer and a full queue stays small."""
    return (
        record.step,
        record.attempt,
        record.rank,
        record.time,
        record.batch_key,
        record.loss,
        record.grad_norm,
        record.lr,
        record.loss_scale,
        record.applied,
        record.rung,
        record.flags,
        record.terms,
        array("d", record.norms) if norms else None,
        names,
    )


def batch_of(rows: Sequence[Row]) -> Any:
    """A record batch of these rows. Raises TypeError, ValueError or OverflowError if a value does not fit its column.

    Made from buffers and not by `pa.array`, which would import pandas wherever it is installed.
    """
    values: dict[str, Any] = {name: column for (name, _), column in zip(FIELDS, zip(*rows, strict=True), strict=False)}
    values["batch_key"] = [None if key is None else text(key) for key in values["batch_key"]]
    values["flags"] = [[text(flag) for flag in flags] for flags in values["flags"]]
    values["terms"] = [[(text(name), value) for name, value in terms.items()] for terms in values["terms"]]
    exact = [bool(flags) or not applied for flags, applied in zip(values["flags"], values["applied"], strict=True)]
    arrays = [_column(values[name], kind) for name, kind in FIELDS[:-1]]
    return pa.record_batch([*arrays, _norms(values["norms"], exact)], schema=SCHEMA)


def _column(values: Sequence[Any], kind: Any) -> Any:
    """One column of plain values, None being a missing one."""
    if pa.types.is_string(kind):
        return _strings(values)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(values), [None, _bits(values)])
    if pa.types.is_map(kind):
        pairs = [pair for row in values for pair in row]
        keys, items = _strings([key for key, _ in pairs]), _column([item for _, item in pairs], kind.item_type)
        return pa.MapArray.from_arrays(_offsets([len(row) for row in values]), keys, items)
    if pa.types.is_list(kind):
        flat = _strings([text for row in values for text in row])
        return pa.ListArray.from_arrays(_offsets([len(row) for row in values]), flat)
    missing = any(value is None for value in values)
    # array.array takes a number of that type or refuses: it neither rounds nor parses.
    packed = array(_CODES[str(kind)], [0 if value is None else value for value in values] if missing else values)
    validity = _bits([value is not None for value in values]) if missing else None
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(packed)])


def _strings(values: Sequence[str | None]) -> Any:
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in encoded]))).astype(np.int32)
    validity = _bits([value is not None for value in values]) if None in values else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _offsets(lengths: Sequence[int] | Any) -> Any:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)])


def _bits(values: Sequence[Any]) -> Any:
    if not all(isinstance(value, bool | np.bool_) for value in values):
        raise TypeError("a flag is neither true nor false")
    return pa.py_buffer(np.packbits(np.array(values, dtype=bool), bitorder="little"))


def text(value: object) -> str:
    """A string that UTF-8 can hold and that cannot swell the journal."""
    return str(value)[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def _norms(rows: Sequence[array[float] | None], exact: Sequence[bool]) -> Any:
    kept = [row if row is not None else array("d") for row in rows]
    lengths = np.array([len(row) for row in kept], dtype=np.int64)
    wide = np.frombuffer(b"".join(row.tobytes() for row in kept), dtype=np.float64)
    narrow = to_float32(wide)
    rough = np.repeat(~np.array(exact, dtype=bool), lengths)
    narrow[rough] = rounded(narrow[rough])
    values = pa.Array.from_buffers(pa.float32(), len(narrow), [None, pa.py_buffer(narrow)])
    missing = pa.Array.from_buffers(pa.bool_(), len(rows), [None, _bits([row is None for row in rows])])
    return pa.ListArray.from_arrays(_offsets(lengths), values, mask=missing)


def to_float32(wide: Any) -> Any:
    """Nearest float32, except that a finite number stays finite and a number that is not zero stays so: an overflow
    or a vanished gradient that happened only on paper would mislead whoever reads the journal."""
    limits = np.finfo(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32)
        grown = np.isinf(narrow) & np.isfinite(wide)
        lost = (narrow == 0) & (wide != 0)
    narrow[grown] = np.copysign(limits.max, wide[grown]).astype(np.float32)
    narrow[lost] = np.copysign(limits.smallest_subnormal, wide[lost]).astype(np.float32)
    return narrow


def rounded(narrow: Any) -> Any:
    """To NORM_BITS bits of mantissa, half to even. What is not finite, or would become so, is left as it is."""
    drop = 23 - NORM_BITS
    bits = narrow.view(np.uint32).astype(np.uint64)
    half = (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)
    short = ((bits + half) & ~np.uint64((1 << drop) - 1)).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(narrow) & np.isfinite(short) & ((short != 0) | (narrow == 0)), short, narrow)


def names_of(schema: Any) -> tuple[str, ...]:
    """The tensors that `norms` speaks of, in order."""
    try:
        names = json.loads((schema.metadata or {}).get(b"steadygrad.names", b"[]"))
    except (ValueError, RecursionError) as error:
        raise JournalError("A step segment's list of tensor names is damaged.") from error
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def records_of(batch: Any, *, run_id: str) -> Iterator[StepRecord]:
    """The records in a batch or table. A step whose norms were not kept has norms ()."""
    for row in batch.to_pylist():
        row["flags"] = tuple(row["flags"] or ())
        row["norms"] = tuple(row["norms"] or ())
        row["terms"] = dict(row["terms"] or ())
        yield StepRecord(run=run_id, **row)
