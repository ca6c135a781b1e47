"""steady scan: is there a NaN in this checkpoint?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: .safetensors, .pt, .pth, .bin, .ckpt, .gguf, *.index.json, .distcp, a run.",
            metavar="PATH...",
        ),
    ],
    since: Annotated[
        bool, typer.Option("--since", help="PATH is a folder of checkpoints: find the last good one by halving.")
    ] = False,
    expect_dtype: Annotated[
        str | None, typer.Option("--expect-dtype", help="Report every matrix that is not of this type, e.g. bfloat16.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for notes as well.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, not only what was found.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=64, help="How many to read with. [default: one a core]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Look for NaN, Inf, absurd, subnormal and all-zero tensors and mixed types in checkpoints of any size.

    Nothing in a file is run: a pickle's instructions are read and not carried out. Values are read in pieces, so memory
    stays far under 500 MB. NaN, an infinity that is no mask, an absurd magnitude and a type other than the expected one
    are poison; zeros, subnormal values and mixed types are notes. Exits with 0 if all is clean, 1 if something is
    poisoned and 2 if something cannot be read; where both are so, with 1, because poison is certain.
    """
    from ..checkup.scanning.kinds import FLOATS
    from ..reporters.scan import as_data, bar, bisection_as_data, print_bisection, print_scan
    from ..reporters.terminal import console, print_json

    if expect_dtype is not None:
        expect_dtype = expect_dtype.removeprefix("torch.")
        expect_dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}.get(
            expect_dtype, expect_dtype
        )
        if expect_dtype not in FLOATS:
            raise UsageError(f"--expect-dtype {expect_dtype} is no type known here: choose from {', '.join(FLOATS)}.")
    if since:
        if len(paths) != 1 or not paths[0].is_dir():
            raise UsageError("--since searches one folder of checkpoints: pass exactly one folder.")
        from ..checkup.scanning.since import bisect

        with bar(console(stderr=True)) as watcher:
            found = bisect(paths[0], expected_dtype=expect_dtype, threads=threads, watcher=watcher)
        if json:
            print_json(bisection_as_data(found))
        else:
            print_bisection(console(), found)
        raise typer.Exit(0 if found.first_bad is None else 1 if found.last_good else found.report.exit_code)

    from ..checkup.scanning.scan import scan as look

    with bar(console(stderr=True)) as watcher:
        report = look(paths, expected_dtype=expect_dtype, threads=threads, watcher=watcher)
    if json:
        print_json(as_data(report, tensors=tensors))
    else:
        print_scan(console(), report, tensors=tensors)
    noted = strict and any(file.findings for file in report.files)
    raise typer.Exit(1 if noted else report.exit_code)
