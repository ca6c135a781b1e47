"""Build `Finding` records of detectors."""

from __future__ import annotations

from typing import Any

from ..records import Finding, Reading, Severity
from ..records.rules import Rule

_NAMED = 32


def finding(
    rule: Rule, reading: Reading, severity: Severity, detail: str, *, subject: str = "", **evidence: Any
) -> Finding:
    """A finding of `rule` about the step of `reading`; `evidence` holds the numbers it rests on, as plain data."""
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=severity,
        step=reading.step,
        rank=reading.rank,
        subject=subject,
        detail=detail,
        evidence=evidence,
    )


def listed(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def not_finite(rule: Rule, reading: Reading, what: str, names: tuple[str, ...] | list[str]) -> Finding | None:
    """The finding that tensors called so are NaN or infinite, if there are any: "weights are", and so on."""
    if not names:
        return None
    return finding(
        rule,
        reading,
        Severity.FATAL,
        f"{what} not finite: {listed(names)}",
        subject=names[0],
        tensors=list(names[:_NAMED]),
        num_bad_tensors=len(names),
    )
