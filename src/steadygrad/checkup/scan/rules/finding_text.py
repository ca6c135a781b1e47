"""How a rule's finding on a tensor is put into words."""

from __future__ import annotations

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from ..formats.float_formats import float_kind


def finding(rule: Rule, level: ScanLevel, tensor: TensorScan, detail: str, *, where: bool = True) -> ScanFinding:
    """A finding on one tensor. In what is kept as evidence, nothing is poison."""
    if tensor.evidence:
        level, detail = ScanLevel.NOTE, f"{detail} (kept as evidence of a refused step)"
    elif where and tensor.first_bad:
        detail += f", the first at {list(tensor.first_bad)}" if _values(tensor) == "values" else f", {_block(tensor)}"
    if tensor.also:
        detail += f"; {tensor.also} more tensors share its memory"
    return ScanFinding(code=rule.code, slug=rule.slug, level=level, tensor=tensor.name, detail=detail)


def share_of(number: int, tensor: TensorScan, *, of: int | None = None) -> str:
    """For example "3 of 4,096 values are"; `of` is given where not all values were looked at."""
    return (
        f"{number:,} of {tensor.num_values if of is None else of:,} {_values(tensor)} {'is' if number == 1 else 'are'}"
    )


def _values(tensor: TensorScan) -> str:
    return "values" if float_kind(tensor.dtype) is not None else "block scales"


def _block(tensor: TensorScan) -> str:
    return f"the first in block {tensor.first_bad[0]:,}" if tensor.first_bad else ""
