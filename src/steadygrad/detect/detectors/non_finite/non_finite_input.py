"""The batch already holds NaN or infinite values.

What it sees
    The floating point tensors of the batch have values that are not finite, by the names under which the batch
    holds them.

Why it hurts
    No operation is the cause and no precision will help: the value came with the data.

Smallest example
    batch["pixels"] = (image - image.min()) / (image.max() - image.min())   # a constant image
    # fixed
    batch["pixels"] = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-6)

What to do
    Look at the rows named in the quarantine and repair the pipeline that made them. The batch is skipped if its
    loss or gradient is bad.

Safety
    A NaN that the model masks out does no harm: if loss and gradient are finite this is a note, and the update
    is applied.

References
    https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding, listed

RULE = Rule("SY108", "non_finite_input", "The batch already holds NaN or infinite values.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; the names were found by whoever scanned the batch."""
    names = reading.bad_inputs
    if not names:
        return None
    harmless = math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)
    effect = "; loss and gradient are finite all the same" if harmless else ""
    return finding(
        RULE,
        reading,
        Severity.NOTE if harmless else Severity.WARNING,
        f"the batch itself is not finite: {listed([_in_words(name) for name in names])}{effect}",
        subject=names[0],
        inputs=list(names),
    )


def _in_words(name: str) -> str:
    """A key stays as it is; a place in a tuple or list, which is a number, says what it counts."""
    return f"element {name} of the batch" if name.split(".")[0].isdigit() else name


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=2, loss=math.nan, grad_norm=math.nan, bad_inputs=("pixels",)), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The loss is NaN, but the batch was clean: the model made it."""
    return Reading(step=2, loss=math.nan, grad_norm=math.nan), History()
