"""The loss is NaN or infinite.

What it sees
    The unscaled total loss of the step, and of every micro-batch of its accumulation window, is not a finite
    number. The message counts micro-batches from 1; `micro_batches` of the finding's evidence, in JSON, from 0.

Why it hurts
    The gradient of a NaN is NaN for every weight it reaches. One such update and no later batch can bring the
    weights back.

Smallest example
    loss = torch.log(torch.zeros(())) * 0   # -inf * 0 = nan
    # fixed
    loss = torch.log(probability.clamp_min(1e-12)) * weight

What to do
    The batch is skipped without a trace. Look at the incident's diagnosis for the op that made the value; if it is
    always the same rows, look at the data.

Safety
    Refusing the update is exact: the run goes on as if the batch had never come. A NaN loss can come with gradients
    that are all finite or zero; the update is refused all the same, since momentum and weight decay would move the
    weights.

References
    https://docs.pytorch.org/docs/stable/generated/torch.isfinite.html
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY101", "non_finite_loss", "The loss is NaN or infinite.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; looks at a few floats."""
    bad = [index for index, loss in enumerate(reading.micro_losses) if not math.isfinite(loss)]
    if math.isfinite(reading.loss) and not bad:
        return None
    count = len(reading.micro_losses)
    where = f" in micro-batch {bad[0] + 1} of {count}" if count > 1 and bad else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"the loss is {reading.loss}{where}",
        subject="loss",
        loss=reading.loss,
        micro_batches=bad,
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=7, loss=math.nan, grad_norm=1.0), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """Huge, but a number."""
    return Reading(step=7, loss=3.4e38, grad_norm=1.0), History()
