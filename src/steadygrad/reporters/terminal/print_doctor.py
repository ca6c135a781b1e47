"""What the doctor found, on a terminal: place, level, code, what it is, the line itself, and what to write instead."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records.checks.checkup import WHY_NOTES, Advice, Checkup, DataStatistics, Level
from .console import shown

STYLES = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.NOTE: "bold blue"}


def print_checkup(console: Console, checkup: Checkup) -> None:
    """Errors and warnings, the notes below them, the data set's table, and one line that sums it up."""
    for advice in checkup.serious:
        print_advice(console, advice)
    if checkup.notes:
        console.print(Text(WHY_NOTES, style="bold blue"))
    for advice in checkup.notes:
        print_advice(console, advice)
    if checkup.statistics is not None:
        print_statistics(console, checkup.statistics)
    console.print(Text(shown(checkup.summary()), style="bold" if checkup.clean else ""))
    if first := (*checkup.serious, *checkup.notes)[:1]:
        console.print(Text(f"More: steady explain {first[0].code}", style="dim"))


def print_advice(console: Console, advice: Advice) -> None:
    """Three lines at most."""
    place = shown(advice.path) if advice.path else shown(advice.subject, limit=80)
    if advice.path and advice.line:
        place += f":{advice.line}" + (f":{advice.column}" if advice.column else "")
    head = Text.assemble(
        (place, "bold"), " ", (advice.level.value, STYLES[advice.level]), " ", (advice.code, "cyan"), " ",
        advice.slug, ": ", shown(advice.detail),
    )  # fmt: skip
    console.print(head, soft_wrap=True)
    if advice.code_line.strip():
        console.print(Text(f"{advice.line:>6} | {shown(advice.code_line, limit=140)}", style="dim"), soft_wrap=True)
    if advice.help:
        console.print(Text.assemble(("       help: ", "dim"), shown(advice.help)), soft_wrap=True)


def print_statistics(console: Console, found: DataStatistics) -> None:
    """What the rows hold: lengths, what is taught, what is cut."""
    table = Table(
        title=f"data set: {found.num_rows_seen} of {found.num_rows or found.num_rows_seen} rows looked at",
        title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False,
    )  # fmt: skip
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in found.told():
        table.add_row(shown(label), shown(text))
    console.print(table)
