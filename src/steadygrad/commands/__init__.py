"""The command `steady`: one verb a file.

A module in the folders before_training, during_training and after_training is a verb: it defines a function of the
same name, whose docstring is the help and whose parameters are the arguments; `WHEN` (before, during or after
training) and `SHORT` are its group and its line in `steady --help`. So a new verb is a new file and nothing else.
Modules here import at the top only what is quick: a verb that needs torch or pyarrow imports it when it is called,
so that
`steady --help` and `steady explain` start at once.

Exit codes: 0 fine, 1 something bad was found, 2 the input cannot be used, 23 training was halted by its policy.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..records.errors import SteadyError

GROUPS = {"before": "Before training", "during": "During training", "after": "After training"}
EPILOG = "Exit codes: 0 fine, 1 something bad was found, 2 the input cannot be used, 23 training was halted."


class Groups(TyperGroup):
    """`steady --help`: the verbs by when they are used."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section a group, a line a verb."""
        for when, title in GROUPS.items():
            chosen = [verb for verb in verbs() if when == _module(verb).WHEN]
            with formatter.section(title):
                formatter.write_dl([(verb, _module(verb).SHORT) for verb in chosen])


def verbs() -> list[str]:
    """The names of all verbs."""
    return sorted(_homes())


@cache
def _homes() -> dict[str, str]:
    """Every verb and the folder of its file."""
    folders = [Path(__path__[0]) / f"{when}_training" for when in GROUPS]
    return {module.name: folder.name for folder in folders for module in iter_modules([str(folder)])}


def make_app() -> typer.Typer:
    """The command line parser with every verb in it."""
    app = typer.Typer(
        name="steady",
        cls=Groups,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(epilog=EPILOG)(_steady)
    for verb in verbs():
        module = _module(verb)
        app.command(verb, epilog=EPILOG, context_settings=getattr(module, "CONTEXT", None))(getattr(module, verb))
    return app


def _module(verb: str) -> Any:
    return import_module(f"{__name__}.{_homes()[verb]}.{verb}")


def main() -> NoReturn:
    """Run one verb. A mistake of the caller's is one sentence on standard error, never a traceback; with --json it is
    one JSON object."""
    if _wants_json(sys.argv[1:]):
        from .json_errors import run_for_programs

        sys.exit(run_for_programs(make_app(), sys.argv[1:]))
    try:
        make_app()()
    except SteadyError as error:
        # Imported here because no other start needs it; the message may name a file that a stranger named.
        from ..reporters.terminal.console import shown

        print(f"steady: {shown(error, limit=2000)}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


def _wants_json(words: list[str]) -> bool:
    """Whether --json is among the words that are ours: those of a program under `steady run` are its own."""
    ours = words[: words.index("--")] if "--" in words else words
    if ours[:1] != ["run"]:
        return "--json" in ours
    for before, word in pairwise(ours):
        if word == "--json":
            return True
        if not word.startswith("-") and not (before.startswith("--") and "=" not in before):
            return False
    return False


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"steadygrad {__version__}")
        raise typer.Exit


def _steady(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps NaN and Inf out of your weights, and tells you which line and which sample caused them."""
