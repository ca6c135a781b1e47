"""steady run: a training program under guard, without a changed line."""

from __future__ import annotations

import json as encoder
import sys
from pathlib import Path
from typing import Annotated

import typer

# What stands behind the program's name is the program's, whatever it looks like.
CONTEXT = {"allow_interspersed_args": False}

WHEN = "during"
SHORT = "guard a training program without changing it"


def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(help="A script and its arguments, or any command (after --).", metavar="PROGRAM [ARGS]..."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module, as in python -m.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Where to write the run, or NAME-2 if one is there.",
            show_default="runs/<program>-<time>",
        ),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="observe, balanced or ultra_conservative.")] = "balanced",
    diagnose: Annotated[
        str, typer.Option("--diagnose", help="How far to look into a refused step: auto, origin or off.")
    ] = "auto",
    notify: Annotated[
        str | None, typer.Option("--notify", help="A URL to POST each incident to, or a command to run.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="At the end one line of JSON on standard error, for programs.")
    ] = False,
) -> None:
    """Run a training program and refuse its non-finite updates; its code is not changed.

    Updates with a non-finite loss or gradient are refused, recorded and diagnosed; the batch leaves no trace. Output,
    arguments, signals and exit code are the program's own (23 where the policy halted it). The summary goes to
    standard error.

    PROGRAM is a script, with -m a module, or after -- any command: steady run -- torchrun --nproc-per-node 2 train.py.
    """
    from ...integrations.zero_code.launch.run_options import RunOptions
    from ...integrations.zero_code.launch.summary import outcome, print_outcome
    from ...integrations.zero_code.launch.supervise import (
        command_line,
        default_run_dir,
        end_like,
        own_run_dir,
        supervise,
    )
    from ...records import to_plain
    from ...records.errors import UsageError
    from ...reporters.terminal.console import console, shown

    words = list(program or ())
    command = command_line(words, module=module)
    if policy not in ("observe", "balanced", "ultra_conservative"):
        raise UsageError(f"There is no policy {policy!r}. Pass observe, balanced or ultra_conservative.")
    if diagnose not in ("auto", "origin", "off"):
        raise UsageError(f"--diagnose is {diagnose!r}: expected auto, origin or off.")
    place = default_run_dir(words) if run_dir is None else own_run_dir(run_dir, command)
    if run_dir is not None and place != run_dir:
        line = f"steady run: {shown(run_dir)} holds a run already, so this one is written to {shown(place)}."
        print(line, file=sys.stderr)
    settings = RunOptions(run_dir=str(place), policy=policy, diagnose=diagnose, notify=notify)
    ended = supervise(command, settings)
    told = outcome(ended)
    if json:
        print(encoder.dumps(to_plain(told), allow_nan=False), file=sys.stderr)
    else:
        print_outcome(console(stderr=True), told)
    raise typer.Exit(end_like(told["exit_code"]))
