"""What a check-up says: advice about a script, a configuration, live objects or a data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How sure it is: an error or a warning stands in the text or was measured, a note is worth a look.

    `error`: it will fail or teach nothing. `warning`: it is seen how it fails. `note`: it fails for values that are not
    seen here, or may be meant so.
    """

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


WHY_NOTES = "Worth a look: what is named below fails only for values that are not seen here, or may be meant so."


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

    def __str__(self) -> str:
        return f"{self.smallest} to {self.largest}, median {self.median:g}, 95 % under {self.p95:g}"


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

    def told(self) -> list[tuple[str, str]]:
        """The same in words, a label and its text a line; what does not apply is left out."""
        lines = [("columns", ", ".join(self.columns) or "-")]
        if self.num_tokens:
            lines.append(("tokens", f"{self.num_tokens} ({_share(self.num_pad_tokens, self.num_tokens)} padding)"))
            lines.append(("length of a row", str(self.lengths)))
        if self.num_label_tokens:
            masked = self.num_label_tokens - self.num_taught_tokens
            lines.append(("labels", f"{self.num_label_tokens}, {_share(masked, self.num_label_tokens)} of them -100"))
            lines.append(("learnt from a row", str(self.taught_lengths)))
            lines.append(("rows that teach nothing", self._of(self.num_rows_taught_nothing)))
        if self.max_length is not None:
            lines.append((f"rows of full length {self.max_length}", self._of(self.num_rows_at_max_length)))
            lines.append(("answers cut off there", self._of(self.num_rows_cut)))
        if self.num_rows_with_eos or self.num_rows_eos_taught:
            lines.append(("rows with an end token", self._of(self.num_rows_with_eos)))
            lines.append(("rows that teach the end", self._of(self.num_rows_eos_taught)))
        return lines

    def _of(self, part: int) -> str:
        return f"{part} of {self.num_rows_seen} ({_share(part, self.num_rows_seen)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Everything one call of the doctor found. Sorted by place; `num_allowed` were silenced by a comment.

    `unchecked` are files that were named and in which no training was recognised.
    """

    advice: tuple[Advice, ...] = ()
    looked_at: tuple[str, ...] = ()
    num_rules: int = 0
    num_allowed: int = 0
    statistics: DataStatistics | None = None
    unchecked: tuple[str, ...] = ()

    def count(self, level: Level) -> int:
        """How many pieces of advice have this level."""
        return sum(each.level is level for each in self.advice)

    @property
    def serious(self) -> tuple[Advice, ...]:
        """The errors and warnings."""
        return tuple(each for each in self.advice if each.level is not Level.NOTE)

    @property
    def notes(self) -> tuple[Advice, ...]:
        """The notes, by code: those of one rule stand together."""
        return tuple(sorted((each for each in self.advice if each.level is Level.NOTE), key=lambda each: each.code))

    @property
    def clean(self) -> bool:
        """Nothing worse than a note."""
        return not (self.count(Level.ERROR) or self.count(Level.WARNING))

    def summary(self) -> str:
        """`train.py: 3 findings (1 error, 2 warnings).`"""
        counts = [(self.count(level), level.value) for level in (Level.ERROR, Level.WARNING, Level.NOTE)]
        parts = [f"{count} {word}" if count == 1 else f"{count} {word}s" for count, word in counts if count]
        where = self.looked_at[0] if len(self.looked_at) == 1 else f"{len(self.looked_at)} files or objects"
        allowed = f"; {self.num_allowed} allowed by comments" if self.num_allowed else ""
        if self.unchecked:
            allowed += f"; nothing was checked in {', '.join(self.unchecked)}, where no training was recognised"
        if not self.advice:
            return f"{where}: no findings ({self.num_rules} {'rule' if self.num_rules == 1 else 'rules'}){allowed}."
        found = "1 finding" if len(self.advice) == 1 else f"{len(self.advice)} findings"
        return f"{where}: {found} ({', '.join(parts)}){allowed}."

    def __str__(self) -> str:
        """The whole check-up as plain text: every finding with its help, the data set's numbers, and the summary."""
        lines = _told(self.serious)
        lines += [WHY_NOTES, *_told(self.notes)] if self.notes else []
        if (data := self.statistics) is not None:
            lines.append(f"data set: {data.num_rows_seen} of {data.num_rows or data.num_rows_seen} rows looked at")
            lines += [f"    {label:<26}{text}" for label, text in data.told()]
        # Names of modules and columns are anyone's: no control character of theirs reaches a terminal.
        return "\n".join(_printable(line) for line in [*lines, self.summary()])


def _told(advice: tuple[Advice, ...]) -> list[str]:
    lines = []
    for each in advice:
        place = f"{each.path}:{each.line}" if each.path and each.line else each.path or each.subject
        lines.append(f"{place} {each.level.value} {each.code} {each.slug}: {each.detail}")
        lines += [f"    help: {each.help}"] if each.help else []
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
