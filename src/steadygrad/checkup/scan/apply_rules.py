"""All rules over what was measured of one checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...records.checks.scan import ScanFinding, TensorScan
from .rules import (
    ck101_nan_values,
    ck102_inf_values,
    ck103_absurd_magnitude,
    ck104_unexpected_dtype,
    ck201_all_zero,
    ck202_subnormal_values,
    ck203_mixed_dtypes,
)

RULES = (
    ck101_nan_values,
    ck102_inf_values,
    ck103_absurd_magnitude,
    ck201_all_zero,
    ck202_subnormal_values,
    ck203_mixed_dtypes,
)


def findings_of(tensors: Sequence[TensorScan], *, expected_dtype: str | None = None) -> tuple[ScanFinding, ...]:
    """What the rules say, poison first, each in the order of the tensors."""
    found: list[ScanFinding] = []
    for rule in RULES:
        answers: Iterable[ScanFinding] = rule.look(tensors)
        found.extend(answers)
    found.extend(ck104_unexpected_dtype.look(tensors, expected_dtype))
    return tuple(sorted(found, key=lambda finding: finding.code))
