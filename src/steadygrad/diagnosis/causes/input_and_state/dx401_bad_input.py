"""The batch itself holds a NaN, an infinity or an absurd outlier.

What it sees
    The slice from the bad value ends in a tensor of the batch; or an op overflows on an input far beyond the rest
    of its batch.

Why it hurts
    One bad record is enough for a bad loss, and batch norm keeps it in its running statistics after the batch is
    gone.

Smallest example
    x = (image - image.min()) / (image.max() - image.min())  # a constant image is 0/0
    # fixed
    x = (image - image.min()) / (image.max() - image.min()).clamp_min(1e-6)

What to do
    Drop the rows, repair the pipeline, and scan the dataset.

Safety
    Dropping rows is exact for the others unless rows are coupled.

References
    https://github.com/avalonstrel/GatedConvolution_pytorch/issues/27
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX401", "bad_input", "The batch itself holds a NaN, an infinity or an absurd outlier.")


def match(e: Evidence) -> Match | None:
    if e.leaf is not None and e.leaf[0] == "batch":
        return Match(0.97, f"the batch entry {e.leaf[1]!r} is not finite")
    if e.batch_outlier is not None and e.phase == "data":
        key, rows, size = e.batch_outlier
        return Match(0.95, f"the batch entry {key!r} holds {size:.3g} in rows {list(rows)}")
    return None
