"""A self-test on a terminal: its steps, its checks, its verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records.checks.selftest import Selftest
from .console import labelled, number, shown

STYLES = {"pass": "green", "doubt": "bold yellow", "fail": "bold red", "fit": "bold green", "doubtful": "bold yellow",
          "unfit": "bold red"}  # fmt: skip


def print_selftest(console: Console, found: Selftest) -> None:
    """The table of steps, one line a check, the verdict last."""
    if found.steps:
        table = Table(box=None, header_style="dim", pad_edge=False)
        for heading in ("step", "loss", "gradient norm", "update / weight"):
            table.add_column(heading, justify="right")
        scaled = any(step.loss_scale is not None for step in found.steps)
        if scaled:
            table.add_column("loss scale", justify="right")
        for step in found.steps:
            cells = [
                str(step.step),
                number(step.loss, digits=6),
                number(step.grad_norm),
                number(step.update_ratio, digits=2),
            ]
            if scaled:
                cells.append(number(step.loss_scale, digits=6) + ("" if step.landed else " refused"))
            table.add_row(*cells)
        console.print(table)
    for check in found.checks:
        line = Text.assemble(f"  {check.name}: ", shown(check.detail))
        console.print(Text.assemble((f"{check.outcome:>5}", STYLES[check.outcome])).append_text(line), soft_wrap=True)
    for note in found.notes:
        console.print(labelled("note", shown(note)), soft_wrap=True)
    outcome, label = ("fail", "failed") if found.verdict == "unfit" else ("doubt", "in doubt")
    worst = "; ".join(check.name for check in found.checks if check.outcome == outcome)
    trainable = f"{found.num_trainable:,} of {found.num_parameters:,} parameters are trainable"
    why = f"{label}: {worst}" if worst else trainable
    verdict = Text.assemble((found.verdict, STYLES[found.verdict]), f" in {found.precision}: {why}.")
    console.print(verdict, soft_wrap=True)
