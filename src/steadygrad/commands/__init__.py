"""The command `steady`: one verb a file.

A module in this folder whose name has no leading underscore is a verb: it defines a function of its own name, whose
docstring is the help and whose parameters are the arguments. So a new verb is a new file and nothing else. Modules
here import at the top only what is quick: a verb that needs torch or pyarrow imports it when it is called, so that
`steady --help` and `steady explain` start at once.

Exit codes: 0 fine, 1 something bad was found, 2 the input cannot be used, 23 training was halted by its policy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, NoReturn

import typer

from ..errors import SteadyError

EPILOG = "Exit codes: 0 fine, 1 something bad was found, 2 the input cannot be used, 23 training was halted."


def verbs() -> list[str]:
    """The names of all verbs."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def make_app() -> typer.Typer:
    """The command line parser with every verb in it."""
    app = typer.Typer(
        name="steady",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(epilog=EPILOG)(_steady)
    for verb in verbs():
        module = import_module(f"{__name__}.{verb}")
        app.command(verb, epilog=EPILOG, context_settings=getattr(module, "CONTEXT", None))(getattr(module, verb))
    return app


def main() -> NoReturn:
    """Run one verb. A mistake of the caller's is one sentence on standard error, never a traceback."""
    try:
        make_app()()
    except SteadyError as error:
        # Imported here because no other start needs it; the message may name a file that a stranger named.
        from ..reporters.terminal import shown

        print(f"steady: {shown(error, limit=2000)}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


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
    """Keeps a PyTorch training run finite, finds out why it was not, and proves the cure."""
