"""The gradient norm is above the limit the policy sets.

What it sees
    The total norm before clipping exceeds `max_norm_to_apply`, an absolute number, whatever is usual for the run.
    `balanced` sets none; `ultra_conservative` sets 2.0.

Why it hurts
    In a fragile run, such as a distillation in float16, a large finite gradient is often the last one before the
    first infinite one.

Smallest example
    Policy.named("balanced").but(max_norm_to_apply=2.0)
    # fixed
    Policy.named("balanced")   # the limit follows the run

What to do
    The batch is skipped. If most are, the limit does not fit the run: raise it, or leave it out and let the
    adaptive limit work.

Safety
    An absolute limit knows nothing of the run and can refuse every step of a healthy one; the streak budget then
    halts it with this sentence rather than going on without learning.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import math

from ....policy import PRESETS, Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY204", "gradient_above_limit", "The gradient norm is above the limit the policy sets.")
POLICY = PRESETS["ultra_conservative"]


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; one comparison."""
    limit = policy.max_norm_to_apply
    if limit is None or not math.isfinite(reading.grad_norm) or reading.grad_norm <= limit:
        return None
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"the gradient norm is {reading.grad_norm:.4g}, above max_norm_to_apply={limit:g} of policy {policy.name}",
        grad_norm=reading.grad_norm,
        limit=limit,
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=4, loss=1.0, grad_norm=2.5), History()


def NEAR_MISS() -> tuple[Reading, History]:
    return Reading(step=4, loss=1.0, grad_norm=2.0), History()
