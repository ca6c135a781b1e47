"""Build findings of a rule over a graph or over live objects, and read a few numbers at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, distributed

from ...records import Finding, Severity
from ...records.rules import Rule
from ..sampled.device_readback import Readback
from ..tensors.foreign_objects import isinstance

NAMED = 16
Held = Collection[Any]
"""The ids of the parameters that optimizers hold: a collection of ids, or one such collection for each optimizer."""


def seen(rule: Rule, subject: str, detail: str, **evidence: Any) -> Finding:
    """A warning of `rule`; the step is filled in by whoever asked."""
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=Severity.WARNING,
        step=0,
        subject=subject,
        detail=detail,
        evidence=evidence,
    )


def read(numbers: Sequence[Tensor]) -> list[float]:
    """One number of each tensor, with one host read for each device."""
    return [value[0] for value in Readback(numbers).values()] if numbers else []


def num_ranks() -> int:
    """How many processes train together. What only one of them does must not wait for the others."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def optimizer_of(held: Held) -> dict[int, int]:
    """Which optimizer holds a parameter, by its id; all in the first where they were given together."""
    found: dict[int, int] = {}
    for number, each in enumerate(held):
        if isinstance(each, int):
            found[each] = 0
        else:
            found |= {int(one): number for one in each}
    return found
