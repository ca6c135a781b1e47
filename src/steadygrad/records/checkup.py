"""What a check-up says: advice about a script, a configuration, live objects or a data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """`error`: it will fail or teach nothing. `warning`: it fails on some data or hardware. `note`: worth knowing."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing a rule found before training: where, what, and what to write instead."""

    code: str
    slug: str
    level: Level
    detail: str
    help: str = ""
    path: str = ""
    line: int = 0
    column: int = 0
    code_line: str = ""
    subject: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The lengths of something over the rows of a data set."""

    smallest: int = 0
    median: float = 0.0
    p95: float = 0.0
    largest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStatistics:
    """Labels, truncation and lengths of the rows that were looked at. Counts are of rows unless they say tokens."""

    num_rows: int = 0
    num_rows_seen: int = 0
    columns: tuple[str, ...] = ()
    num_tokens: int = 0
    num_pad_tokens: int = 0
    lengths: Spread = Spread()
    num_label_tokens: int = 0
    num_taught_tokens: int = 0
    num_rows_taught_nothing: int = 0
    taught_lengths: Spread = Spread()
    max_length: int | None = None
    num_rows_at_max_length: int = 0
    num_rows_cut: int = 0
    num_rows_with_eos: int = 0
    num_rows_eos_taught: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Everything one call of the doctor found. Sorted by place; `num_allowed` were silenced by a comment."""

    advice: tuple[Advice, ...] = ()
    looked_at: tuple[str, ...] = ()
    num_rules: int = 0
    num_allowed: int = 0
    statistics: DataStatistics | None = None

    def count(self, level: Level) -> int:
        """How many pieces of advice have this level."""
        return sum(each.level is level for each in self.advice)

    @property
    def clean(self) -> bool:
        """Nothing worse than a note."""
        return not (self.count(Level.ERROR) or self.count(Level.WARNING))
