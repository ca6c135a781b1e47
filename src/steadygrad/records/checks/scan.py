"""What a scan of checkpoints found: per tensor, per file, and in all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ScanVerdict(StrEnum):
    """One word for a file or a whole scan. Poisoned outranks unreadable: what was found is certain."""

    CLEAN = "clean"
    POISONED = "poisoned"
    UNREADABLE = "unreadable"


class ScanLevel(StrEnum):
    """Poison makes a scan fail; a note is worth a look and changes nothing."""

    POISON = "poison"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorScan:
    """What the values of one tensor are like. Of a quantised tensor the values are its block scales.

    `largest` is the largest finite magnitude. `first_bad` is the index of the first value that is not finite.
    Zeros and subnormal values were counted among `num_counted` of the values: all of them, but in large tensors
    an eighth. `also` counts further tensors that lie in the same memory and were not measured again.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_values: int
    num_counted: int = 0
    num_nan: int = 0
    num_inf: int = 0
    num_zero: int = 0
    num_subnormal: int = 0
    num_saturated: int = 0
    num_positive_extremes: int = 0
    """Infinite or saturated values above zero: a mask has none."""
    largest: float = 0.0
    first_bad: tuple[int, ...] | None = None
    also: int = 0
    evidence: bool = False
    """Kept on purpose as it was, such as the batch in a capsule: bad values in it are no fault of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFinding:
    """One rule's word on one tensor, or on the whole file where `tensor` is None."""

    code: str
    slug: str
    level: ScanLevel
    tensor: str | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """One checkpoint file, or one checkpoint spread over several. `problems` say why something was not read."""

    path: str
    format: str
    num_tensors: int = 0
    num_bytes: int = 0
    tensors: tuple[TensorScan, ...] = ()
    findings: tuple[ScanFinding, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> ScanVerdict:
        if any(finding.level is ScanLevel.POISON for finding in self.findings):
            return ScanVerdict.POISONED
        return ScanVerdict.UNREADABLE if self.problems else ScanVerdict.CLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """All files of one scan."""

    files: tuple[FileScan, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> ScanVerdict:
        found = {file.verdict for file in self.files}
        for verdict in (ScanVerdict.POISONED, ScanVerdict.UNREADABLE):
            if verdict in found:
                return verdict
        return ScanVerdict.CLEAN

    @property
    def exit_code(self) -> int:
        """0 clean, 1 poisoned, 2 unreadable; 1 where some files are poisoned and others cannot be read."""
        return {ScanVerdict.CLEAN: 0, ScanVerdict.POISONED: 1, ScanVerdict.UNREADABLE: 2}[self.verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Since when a series of checkpoints is bad. `looked_at` is in the order it was done."""

    last_good: str | None
    first_bad: str | None
    num_checkpoints: int
    looked_at: tuple[tuple[str, ScanVerdict], ...]
    report: ScanReport
    """The scans of the last good and the first bad one."""
