"""steady explain: the page of a rule."""

from __future__ import annotations

from typing import Annotated

import typer

WHEN = "after"
SHORT = "what a code such as SY101 means, and what to do"


def explain(
    code: Annotated[
        str | None,
        typer.Argument(help="A code such as SY101, or its name. Without one, all.", metavar="CODE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Print what a code of a symptom, cause or remedy means, why it hurts, and what to do."""
    from ...records import rules
    from ...reporters.terminal import rule_page
    from ...reporters.terminal.console import console, print_json

    if code is None:
        pages = rules.pages()
        if json:
            print_json([{"code": page.code, "slug": page.slug, "summary": page.summary} for page in pages])
        else:
            rule_page.print_list(console(), pages)
        return
    page = rules.page(code)
    if json:
        print_json(rule_page.as_data(page))
    else:
        rule_page.print_page(console(), page)
