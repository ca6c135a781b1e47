"""steady selftest: ten steps of a set-up, and a verdict."""

from __future__ import annotations

from typing import Annotated

import typer

WHEN = "before"
SHORT = "ten steps of your own set-up, and a verdict"


def selftest(
    factory: Annotated[
        str,
        typer.Argument(
            help="Your function that returns (model, optimizer, loss_fn, batches): train.py:make or module:make.",
            metavar="FACTORY",
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many steps.")] = 10,
    max_grad_norm: Annotated[float | None, typer.Option("--max-grad-norm", help="Clip as the run will.")] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16 or fp16.")] = "fp32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run one forward and backward and ten steps of your own set-up, and say whether it is fit to train.

    Exits with 0 if it is fit, with 1 if something failed or is in doubt, and with 2 if the function cannot be used.
    """
    from ...checkup.inputs.user_factory import load_factory, make_objects
    from ...reporters.terminal.console import console, print_json
    from ...reporters.terminal.print_selftest import print_selftest

    made = make_objects(load_factory(factory), factory)

    from ...checkup.trials.selftest import selftest as run

    found = run(
        made["model"], made["optimizer"], made["loss_fn"], made["batches"],
        steps=steps, max_grad_norm=max_grad_norm, precision=precision,
    )  # fmt: skip
    if json:
        print_json(found)
    else:
        print_selftest(console(), found)
    if not found.fit:
        raise typer.Exit(1)
