"""A module's output comes near the end of its precision's range.

What it sees
    The largest magnitude a module put out is above a quarter of 65,504 in float16, or above 1e15 in a wider
    precision, where its square no longer fits.

Why it hurts
    The next larger batch overflows to infinity, and from there a subtraction makes NaN. The growth shows many steps
    before the failure.

Smallest example
    torch.full((2,), 4e4, dtype=torch.float16) * 2   # inf
    # fixed
    torch.full((2,), 4e4, dtype=torch.bfloat16) * 2   # 80,000

What to do
    Run this module in bfloat16 or float32, scale its output down, or add a normalisation before it.

Safety
    It changes nothing. Infinities that are there on purpose, as in a mask, are not judged. Not measured in compiled
    models, where a hook would force a new compilation.

References
    https://huggingface.co/docs/transformers/debugging
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..sample_helpers import ActivationNumbers, StepObservation, about

RULE = Rule("SY408", "activation_range", "A module's output comes near the end of its precision's range.")
_LIMITS = {"float16": 0.25 * 65504.0}
_WIDE_LIMIT = 1e15


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at the last sampling only."""
    near = [seen for seen in samplings[-1].activations if _is_near(seen)]
    if not near:
        return None
    near.sort(key=lambda seen: seen.absmax, reverse=True)
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [seen.module or "the model" for seen in near],
        f"reach up to {near[0].absmax:.4g} in {near[0].dtype}",
        absmax=near[0].absmax,
        dtype=near[0].dtype,
    )


def _is_near(seen: ActivationNumbers) -> bool:
    return math.isfinite(seen.absmax) and seen.absmax > _LIMITS.get(seen.dtype, _WIDE_LIMIT)


def _output(absmax: float, dtype: str) -> list[StepObservation]:
    return [StepObservation(step=1, activations=(ActivationNumbers(module="ffn.wo", dtype=dtype, absmax=absmax),))]


def SPECIMEN() -> list[StepObservation]:
    return _output(4e4, "float16")


def NEAR_MISS() -> list[StepObservation]:
    """The same number is nothing to bfloat16."""
    return _output(4e4, "bfloat16")
