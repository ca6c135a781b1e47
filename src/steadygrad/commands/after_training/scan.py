"""steady scan: is there a NaN in this checkpoint?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...records.errors import UsageError

WHEN = "after"
SHORT = "find NaN and Inf in checkpoints"


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: .safetensors, .pt, .pth, .bin, .ckpt, .gguf, *.index.json, .distcp, a run.",
            metavar="PATH...",
        ),
    ],
    since: Annotated[
        bool, typer.Option("--since", help="PATH is a folder of checkpoints: find the last good one by bisection.")
    ] = False,
    expect_dtype: Annotated[
        str | None, typer.Option("--expect-dtype", help="Report every matrix that is not of this type, e.g. bfloat16.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for notes as well.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, not only what was found.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=64, help="How many threads read. [default: one a core]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Find NaN and Inf in checkpoints of any size, and values that are absurdly large, subnormal or all zero.

    Nothing in a file is run: a pickle's instructions are read and not carried out. Values are read in pieces, so memory
    stays far under 500 MB. NaN, an infinity that is no mask, an absurd magnitude and a type other than the expected one
    are poison; zeros, subnormal values and mixed types are notes. Exits with 0 if all is clean, 1 if something is
    poisoned and 2 if something cannot be read; where both are so, with 1, because poison is certain.
    """
    from ...checkup.scan.child_process import can_guard, guarded

    if since and (len(paths) != 1 or not paths[0].is_dir()):
        raise UsageError("--since searches one folder of checkpoints: pass exactly one folder.")
    mapped = can_guard()

    def look() -> int:
        # Imported here and not before: numpy starts threads, and a process with threads is not forked.
        from ...checkup.scan.bisect_checkpoints import bisect
        from ...checkup.scan.formats.float_formats import float_named
        from ...checkup.scan.scan import scan as look_at
        from ...reporters.terminal.console import console, print_json
        from ...reporters.terminal.print_scan import as_data, bar, bisection_as_data, print_bisection, print_scan

        dtype = None if expect_dtype is None else float_named(expect_dtype)
        if since:
            with bar(console(stderr=True)) as watcher:
                found = bisect(paths[0], expected_dtype=dtype, threads=threads, watcher=watcher, mapped=mapped)
            if json:
                print_json(bisection_as_data(found))
            else:
                print_bisection(console(), found)
            return 0 if found.first_bad is None else 1 if found.last_good else found.report.exit_code
        with bar(console(stderr=True)) as watcher:
            report = look_at(paths, expected_dtype=dtype, threads=threads, watcher=watcher, mapped=mapped)
        if json:
            print_json(as_data(report, tensors=tensors))
        else:
            print_scan(console(), report, tensors=tensors)
        return 1 if strict and any(file.findings for file in report.files) else report.exit_code

    raise typer.Exit(guarded(look) if mapped else look())
