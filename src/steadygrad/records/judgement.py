"""What was judged of a step (findings) and what shall be done about it (a decision)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad. `fatal` means the update must not be applied; `warning` may call for action; `note` is for the
    record."""

    NOTE = "note"
    WARNING = "warning"
    FATAL = "fatal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One symptom seen in one step, with the numbers it rests on."""

    code: str
    slug: str
    severity: Severity
    step: int
    rank: int = 0
    subject: str = ""
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


class Action(StrEnum):
    """What `act` can do. The policy names one; it never does it."""

    PROCEED = "proceed"
    SKIP = "skip"
    TIGHTEN_CLIP = "tighten_clip"
    SCALE_LR = "scale_lr"
    ROLLBACK = "rollback"
    DROP_TERM = "drop_term"
    WIDEN_PRECISION = "widen_precision"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about one step. `clip_factor` and `lr_factor` are relative to what the user asked for."""

    step: int
    actions: tuple[Action, ...] = (Action.PROCEED,)
    findings: tuple[Finding, ...] = ()
    rung: int = 0
    lr_factor: float = 1.0
    clip_factor: float = 1.0
    dropped_terms: tuple[str, ...] = ()
    widened: bool = False
    reason: str = ""
    budget_left: int | None = None
    ranks_agreed: bool = True

    @property
    def applies(self) -> bool:
        """Whether the update of this step is to stand."""
        return not ({Action.SKIP, Action.ROLLBACK, Action.HALT} & set(self.actions))
