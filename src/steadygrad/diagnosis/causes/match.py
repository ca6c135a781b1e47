"""How sure a judge is, and why, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """`confidence` is between 0 and 1; `because` names the numbers it rests on."""

    confidence: float
    because: str
