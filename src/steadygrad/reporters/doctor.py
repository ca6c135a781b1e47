"""What the doctor found, on a terminal: place, level, code, what it is, the line itself, and what to write instead."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.checkup import Advice, Checkup, DataStatistics, Level, Spread
from .terminal import number, shown

STYLES = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.NOTE: "bold blue"}


def print_checkup(console: Console, checkup: Checkup) -> None:
    """Every piece of advice, the data set's table, and one line that sums it up."""
    for advice in checkup.advice:
        print_advice(console, advice)
    if checkup.statistics is not None:
        print_statistics(console, checkup.statistics)
    console.print(Text(summary(checkup), style="bold" if checkup.clean else ""))
    if codes := sorted({advice.code for advice in checkup.advice}):
        console.print(Text(f"steady explain {codes[0]} tells more, and so for every code.", style="dim"))


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


def summary(checkup: Checkup) -> str:
    """`3 findings (1 error, 2 warnings) in 2 files; 43 rules`."""
    counts = [(checkup.count(level), level.value) for level in (Level.ERROR, Level.WARNING, Level.NOTE)]
    parts = [f"{count} {word}" if count == 1 else f"{count} {word}s" for count, word in counts if count]
    total = len(checkup.advice)
    looked = len(checkup.looked_at)
    where = shown(checkup.looked_at[0]) if looked == 1 else f"{looked} places"
    allowed = f"; {checkup.num_allowed} allowed by comments" if checkup.num_allowed else ""
    if not total:
        return f"{where}: nothing found by {checkup.num_rules} rules{allowed}."
    return f"{where}: {total} {'finding' if total == 1 else 'findings'} ({', '.join(parts)}){allowed}."


def print_statistics(console: Console, found: DataStatistics) -> None:
    """What the rows hold: lengths, what is taught, what is cut."""
    table = Table(
        title=f"data set: {found.num_rows_seen} of {found.num_rows or found.num_rows_seen} rows looked at",
        title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False,
    )  # fmt: skip
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, text in statistics_rows(found):
        table.add_row(label, text)
    console.print(table)


def statistics_rows(found: DataStatistics) -> list[tuple[str, str]]:
    """The table's lines; those that do not apply are left out."""
    rows = [("columns", shown(", ".join(found.columns) or "-"))]
    if found.num_tokens:
        rows.append(("tokens", f"{found.num_tokens} ({_share(found.num_pad_tokens, found.num_tokens)} padding)"))
        rows.append(("length of a row", _spread(found.lengths)))
    if found.num_label_tokens:
        masked = found.num_label_tokens - found.num_taught_tokens
        rows.append(("labels", f"{found.num_label_tokens}, {_share(masked, found.num_label_tokens)} of them -100"))
        rows.append(("learnt from a row", _spread(found.taught_lengths)))
        rows.append(("rows that teach nothing", _of(found.num_rows_taught_nothing, found.num_rows_seen)))
    if found.max_length is not None:
        rows.append((f"rows of full length {found.max_length}", _of(found.num_rows_at_max_length, found.num_rows_seen)))
        rows.append(("answers cut off there", _of(found.num_rows_cut, found.num_rows_seen)))
    if found.num_rows_with_eos or found.num_rows_eos_taught:
        rows.append(("rows with an end token", _of(found.num_rows_with_eos, found.num_rows_seen)))
        rows.append(("rows that teach the end", _of(found.num_rows_eos_taught, found.num_rows_seen)))
    return rows


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole} ({_share(part, whole)})"


def _spread(found: Spread) -> str:
    return f"{found.smallest} to {found.largest}, median {number(found.median)}, 95 % under {number(found.p95)}"
