"""A rule's page on the terminal, and the list of all rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records.rules import HEADINGS, RulePage

FAMILIES = {
    "SY": "symptoms: what the guard sees in a step",
    "DX": "causes: why a value went bad",
    "RX": "remedies: what can be tried",
    "PF": "doctor: what to change before training",
    "CK": "scan: what is wrong in a checkpoint or a data set",
    "IE": "internal errors of steadygrad: training goes on without that part",
}


def as_data(page: RulePage) -> dict[str, Any]:
    """A page for programs."""
    sections = {heading: page.sections[heading] for heading in HEADINGS if heading in page.sections}
    return {"code": page.code, "slug": page.slug, "summary": page.summary, "sections": sections}


def print_page(console: Console, page: RulePage) -> None:
    """One page, section by section."""
    console.print(Text.assemble((page.code, "bold cyan"), " ", (page.slug, "bold")))
    console.print(Text(page.summary))
    for heading in HEADINGS:
        if heading in page.sections:
            console.print()
            console.print(Text(heading, style="bold"))
            console.print(Text(page.sections[heading]), soft_wrap=True)


def print_list(console: Console, pages: Sequence[RulePage]) -> None:
    """Every rule in a line, family by family."""
    for prefix, title in FAMILIES.items():
        family = [page for page in pages if page.code.startswith(prefix)]
        if not family:
            continue
        table = Table(title=f"{prefix}  {title}", title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(style="dim")
        for page in family:
            table.add_row(page.code, page.slug, page.summary)
        console.print(table)
        console.print()
    console.print(Text("steady explain CODE prints the page of one of them.", style="dim"))
