"""Build findings of a rule over the loop."""

from __future__ import annotations

from typing import Any

from ....records import Finding, Severity
from ....records.rules import Rule
from ..loop_record import LoopRecord


def loop_finding(
    rule: Rule, record: LoopRecord, detail: str, *, fix: str, subject: str = "", phase: str = "loop", **evidence: Any
) -> Finding:
    """A finding about the last update. `fix` is one line that says what to change."""
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=Severity.WARNING,
        step=record.last.step,
        subject=subject,
        detail=detail,
        evidence={"phase": phase, "fix": fix, **evidence},
    )
