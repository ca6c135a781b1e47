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
    """One symptom seen in one step, with the numbers it rests on.

    Args:
        code, slug: the rule that saw it, such as SY101 and non_finite_loss; `steady explain SY101` has its page.
        severity: fatal (the update must not be applied), warning or note.
        step, rank: where.
        subject: the tensor, term or module it is about.
        detail: one sentence with the numbers.
        evidence: the numbers by name.

    Returns:
        A frozen record.

    Example:
        >>> sg.Finding(code="SY101", slug="non_finite_loss", severity="fatal", step=7, detail="the loss is nan").detail
        'the loss is nan'
    """

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


@dataclass(frozen=True, kw_only=True)  # without slots, as a reading
class Decision:
    """What to do about one step. `clip_factor` and `lr_factor` are relative to what the user asked for.

    Args:
        step: the step it is about.
        actions: what is done: proceed, skip, tighten_clip, scale_lr, rollback, drop_term, widen_precision, halt.
        findings: what was seen in the step.
        rung: how many escalations are in force.
        lr_factor, clip_factor: what the learning rate and the clip are multiplied by from here on.
        dropped_terms: loss terms that are left out from here on.
        widened: whether the step is computed in higher precision from here on.
        reason: one sentence.
        budget_left: how many more bad steps in a row end in a halt; None where nothing halts.
        ranks_agreed: whether every rank came to the same decision.

    Returns:
        A frozen record; `applies` says whether the update stands.

    Example:
        >>> sg.Decision(step=7, actions=("skip",), reason="the loss is nan").applies
        False
    """

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
