"""A buffer, such as running statistics, is NaN or infinite.

What it sees
    A scan of the module's buffers found floating point values that are not finite after the step was undone.

Why it hurts
    Running statistics are written in forward, before it is known that the batch is bad. Training looks healthy,
    since it uses the batch's own statistics, while evaluation is NaN for ever.

Smallest example
    model.bn.running_var.fill_(float("nan"))
    # fixed
    model.bn.reset_running_stats()

What to do
    The policy rolls back where it can. Otherwise reset the buffer and recompute the statistics on a few good
    batches.

Safety
    A buffer may hold an infinity on purpose, such as an additive mask; whoever scans leaves out those that were so
    from the start.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading
from ....records.rules import Rule
from ...history import History
from ...make_finding import not_finite

RULE = Rule("SY107", "non_finite_buffer", "A buffer, such as running statistics, is NaN or infinite.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; the names were found by whoever scanned the tensors."""
    return not_finite(RULE, reading, "buffers are", reading.bad_buffers)


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_buffers=("bn.running_var",)), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The batch held a NaN, and the buffers were restored with the skipped step."""
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_inputs=("pixels",)), History()
