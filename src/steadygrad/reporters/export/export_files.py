"""The tables of a run as files: Parquet as it is, CSV with everything as text. Whole or not at all.

Numbers that are not finite survive: Parquet holds them as they are, CSV as nan, inf and -inf, which pandas, polars and
DuckDB read back. A text in CSV that a spreadsheet would take for a formula gets an apostrophe in front of it.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ...journal import read_batches, safe_files, tensor_names
from ...journal.run_directory import open_run
from ...records.errors import JournalError, UsageError
from .export_tables import INCIDENT_COLUMNS, PLAIN, incident_rows, step_rows, term_names

TABLES = ("steps", "incidents")
STDOUT = Path("-")


def export_csv(run_dir: str | os.PathLike[str], output: Path, *, table: str = "steps", norms: bool = False) -> int:
    """Write a table as CSV and give the number of its rows; `-` is standard output. Memory: one segment at a time."""
    if table == "incidents":
        rows = incident_rows(run_dir)
        with _opened(run_dir, output) as target:
            writer = csv.writer(target)
            writer.writerow(INCIDENT_COLUMNS)
            writer.writerows([_cell(value) for value in row] for row in rows)
        return len(rows)
    terms = term_names(run_dir)
    batches = _with_a_step(run_dir, step_rows(run_dir, terms, norms=norms))
    number = 0
    with _opened(run_dir, output) as target:
        writer = csv.writer(target)
        heading = [*PLAIN, "flags", *(f"term_{name}" for name in terms), *(["norms"] if norms else [])]
        writer.writerow([_cell(name) for name in heading])
        for count, batch in batches:
            writer.writerows([_cell(value) for value in row] for row in batch)
            number += count
    return number


def export_parquet(run_dir: str | os.PathLike[str], output: Path, *, table: str = "steps") -> int:
    """Write a table as Parquet and give the number of its rows. Memory: one segment at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ...journal.steps.columns import SCHEMA

    if output == STDOUT:
        raise UsageError("--parquet needs a file: Parquet is written from both ends and cannot go to a pipe.")
    if table == "incidents":
        rows = incident_rows(run_dir)
        columns = list(zip(*rows, strict=True)) or [()] * len(INCIDENT_COLUMNS)
        whole = pa.table(
            {
                name: pa.array(list(column), _incident_type(pa, name))
                for name, column in zip(INCIDENT_COLUMNS, columns, strict=True)
            }
        )
        _replaced(run_dir, output, lambda path: pq.write_table(whole, path, compression="zstd"))
        return len(rows)
    about = {"steadygrad.run": str(open_run(run_dir)), "steadygrad.norms": "\n".join(tensor_names(run_dir))}
    schema = SCHEMA.with_metadata(about)
    batches = _with_a_step(run_dir, ((batch.num_rows, batch) for batch in read_batches(run_dir)))
    number = 0

    def write(path: Path) -> None:
        nonlocal number
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            waiting: list[Any] = []
            gathered = 0
            for count, batch in batches:
                waiting.append(batch.replace_schema_metadata(about))
                gathered, number = gathered + count, number + count
                if gathered >= 1 << 16:  # a row group a batch would make a slow file
                    writer.write_table(pa.Table.from_batches(waiting, schema=schema))
                    waiting, gathered = [], 0
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, schema=schema))

    _replaced(run_dir, output, write)
    return number


def _incident_type(pa: Any, name: str) -> Any:
    if name in ("number", "first_step", "last_step"):
        return pa.int64()
    return pa.float64() if name == "time" else pa.string()


def _with_a_step(run_dir: object, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """The same batches, after making sure that there is one: nothing is written for a run without steps."""
    first = next(batches, None)
    if first is None:
        raise JournalError(f"{run_dir} holds no steps yet: the run was made, and nothing was settled in it.")

    def all_of_them() -> Iterator[tuple[int, Any]]:
        yield first
        yield from batches

    return all_of_them()


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)  # nan, inf and -inf among them
        case str() if value[:1] in ("=", "+", "-", "@", "\t", "\r"):
            return "'" + value
    return str(value)


@contextmanager
def _opened(run_dir: str | os.PathLike[str], output: Path) -> Iterator[TextIO]:
    """Standard output, or a file that takes its name only when it is whole."""
    if output == STDOUT:
        yield sys.stdout
        return
    target = _checked(run_dir, output)
    try:
        with safe_files.temporary_file(target.parent) as (_, temporary):
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                yield file
            os.replace(temporary, target)
    except OSError as error:
        raise _unwritable(output, error) from error


def _replaced(run_dir: str | os.PathLike[str], output: Path, write: Callable[[Path], None]) -> None:
    target = _checked(run_dir, output)
    try:
        with safe_files.temporary_file(target.parent) as (_, temporary):
            write(temporary)
            os.replace(temporary, target)
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: Path, error: OSError) -> Exception:
    if isinstance(error, JournalError):
        return error
    return UsageError(f"{output} cannot be written: {safe_files.why(error)}.")


def _checked(run_dir: str | os.PathLike[str], output: Path) -> Path:
    """Where to write, refusing to put a table in place of what the run itself consists of."""
    target = output.expanduser().resolve()
    if target.exists() and target.is_relative_to(open_run(run_dir)):
        raise UsageError(f"{output} is a part of the run itself: pass a place outside of it, or a new name.")
    return target
