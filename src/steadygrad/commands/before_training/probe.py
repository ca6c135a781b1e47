"""steady probe: can this model train in fp16, bf16 or fp8?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

WHEN = "before"
EARLIER = 3
SHORT = "whether your model can train in fp16, bf16 or fp8"


def probe(
    factory: Annotated[
        str,
        typer.Argument(
            help="Your function that returns (model, optimizer, loss_fn, batches): train.py:make or module:make.",
            metavar="FACTORY",
        ),
    ],
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="Only this one: fp16, bf16, fp8_e4m3 or fp8_e5m2; repeatable.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a picture: .svg, or .png.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every module, not only the twenty tightest.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Watch one step of your own model and say in which dtypes it can train, and which modules need a wider one.

    The first of the batches is used; the three after it give the delayed scales of 8-bit floats. Every answer is
    checked by running the step in that dtype. Exits with 0 if it fits in all of them, with 1 if it does not, and with 2
    if the function cannot be used.
    """
    from ...checkup.inputs.user_factory import load_factory, make_objects
    from ...records.errors import UsageError
    from ...reporters.pictures.probe_picture import write_picture
    from ...reporters.terminal.console import console, print_json, shown
    from ...reporters.terminal.print_probe import print_probe

    made = make_objects(load_factory(factory), factory, needs=("model", "loss_fn", "batches"))

    from ...checkup.trials.dtype_ranges import FORMATS
    from ...checkup.trials.probe import probe as run

    batches = list(islice(made["batches"], 1 + EARLIER))
    if not batches:
        raise UsageError(f"{factory} returned no batch to probe with.")
    found = run(made["model"], made["loss_fn"], batches[0], dtypes=tuple(dtype or FORMATS), earlier=batches[1:])
    if output is not None:
        write_picture(found, output)
    if json:
        print_json(found)
    else:
        screen = console()
        print_probe(screen, found, most=None if every else 20)
        if output is not None:
            screen.print(f"the picture is in {shown(output)}")
    if not found.fit:
        raise typer.Exit(1)
