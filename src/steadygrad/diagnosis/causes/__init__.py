"""The named causes, one file each. A judge is a pure function of the evidence; the surest one wins, or none does."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from ...records import Cause
from ...records.rules import rule_modules
from .evidence import Evidence
from .match import Match

CERTAIN_ENOUGH = 0.5
"""Below this a name would be a guess, and a wrong name costs more than none."""


@cache
def judges() -> tuple[ModuleType, ...]:
    """Every cause's module, in the order of their codes."""
    return rule_modules(__name__, Path(__file__).parent, "dx*")


def name_cause(evidence: Evidence) -> tuple[Cause | None, Match | None, tuple[tuple[str, float], ...]]:
    """The surest cause with its reason, and every cause that matched at all."""
    matches = [(judge, match) for judge in judges() if (match := judge.match(evidence)) is not None]
    also = tuple(sorted(((judge.RULE.slug, m.confidence) for judge, m in matches), key=lambda item: -item[1]))
    best = max(matches, key=lambda item: item[1].confidence, default=None)
    if best is None or best[1].confidence < CERTAIN_ENOUGH:
        return None, None, also
    return Cause(code=best[0].RULE.code, slug=best[0].RULE.slug), best[1], also
