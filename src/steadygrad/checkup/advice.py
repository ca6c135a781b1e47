"""How a rule of the check-up says what it found."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ..records.checks.checkup import Advice, Level
from ..records.rules import Rule

if TYPE_CHECKING:
    from .inputs.run_settings import Settings
    from .inputs.script import Script


def at(
    rule: Rule, level: Level, script: Script, node: ast.AST, detail: str, *, help: str = "", subject: str = ""
) -> Advice:
    """Advice about a place in a script."""
    line = getattr(node, "lineno", 0)
    return Advice(
        code=rule.code,
        slug=rule.slug,
        level=level,
        detail=detail,
        help=help,
        path=script.path,
        line=line,
        column=getattr(node, "col_offset", -1) + 1,
        code_line=script.line(line),
        subject=subject,
    )


def setting(rule: Rule, level: Level, settings: Settings, key: str, detail: str, *, help: str = "") -> Advice:
    """Advice about one setting, at the line that sets it, or where the settings begin if nothing sets it."""
    line = settings.line_of(key)
    return Advice(
        code=rule.code,
        slug=rule.slug,
        level=level,
        detail=detail,
        help=help,
        path=settings.path,
        line=line,
        code_line=settings.text_at(line),
        subject=key,
    )


def about(rule: Rule, level: Level, subject: str, detail: str, *, help: str = "", **evidence: Any) -> Advice:
    """Advice about live objects or data, with the numbers it rests on."""
    return Advice(
        code=rule.code, slug=rule.slug, level=level, detail=detail, help=help, subject=subject, evidence=evidence
    )


def listed(names: list[str] | tuple[str, ...], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
