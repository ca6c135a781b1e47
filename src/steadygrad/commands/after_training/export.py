"""steady export: a run as a table for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...records.errors import UsageError

WHEN = "after"
SHORT = "a run as Parquet or CSV"


class Table(StrEnum):
    """What of a run is written."""

    STEPS = "steps"
    INCIDENTS = "incidents"


def export(
    run: Annotated[Path, typer.Argument(help="The run directory a guard wrote to.", metavar="RUN")],
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write a Parquet file here.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a CSV file here; - is standard output.")] = None,
    table: Annotated[Table, typer.Option("--table", help="Which table.")] = Table.STEPS,
    norms: Annotated[bool, typer.Option("--norms", help="Put the per-tensor norms into the CSV as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write the steps or the incidents of a run as Parquet or CSV, for pandas, polars, DuckDB or a spreadsheet.

    NaN and Inf are kept. Memory stays flat however long the run. A last row that was cut off by a kill is left out.
    """
    from ...reporters.export.export_files import STDOUT, export_csv, export_parquet
    from ...reporters.terminal.console import console, print_json, shown

    if parquet is None and csv is None:
        raise UsageError("Say what to write: --parquet FILE, --csv FILE or both.")
    if json and csv == STDOUT:
        raise UsageError("--csv - and --json would both go to standard output: choose one.")
    written = []
    if parquet is not None:
        written.append((str(parquet), export_parquet(run, parquet, table=table.value)))
    if csv is not None:
        written.append((str(csv), export_csv(run, csv, table=table.value, norms=norms)))
    if json:
        files = [{"path": path, "rows": rows} for path, rows in written]
        print_json({"run": str(run), "table": table.value, "files": files})
        return
    screen = console(stderr=csv == STDOUT)
    for path, rows in written:
        screen.print(f"{shown(path)}: {rows:,} {table.value}", soft_wrap=True)
