"""A tensor in a checkpoint holds NaN.

What it sees
    At least one value of a weight, a buffer, a moment or a scale is NaN.

Why it hurts
    A NaN reaches every output that depends on it in the first forward pass, and every weight in the first update.
    A run resumed from this file is lost before it begins, and nothing that is trained on top of it recovers.

Smallest example
    state = {"weight": torch.tensor([1.0, float("nan")])}
    torch.save(state, "model.pt")
    # fixed
    sg.Guard(model, optimizer, loss_fn)  # refuses the update that would have written it

What to do
    `steady scan --since FOLDER` finds the last good checkpoint of a series. Resume from that one, guarded, and find
    out what made the NaN; do not replace it by zeros, which hides the damage and keeps the cause.

Safety
    NaN is never intended. The batch in a capsule is left out: it is kept as evidence of what was refused.

References
    https://docs.pytorch.org/docs/stable/generated/torch.isnan.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from .finding_text import finding, share_of

RULE = Rule("CK101", "nan_values", "A tensor in a checkpoint holds NaN.")


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    for tensor in tensors:
        if tensor.num_nan:
            yield finding(RULE, ScanLevel.POISON, tensor, f"{share_of(tensor.num_nan, tensor)} NaN")


SPECIMEN = (TensorScan(name="w", dtype="float32", shape=(4,), num_values=4, num_nan=1, largest=1.0, first_bad=(2,)),)
NEAR_MISS = (TensorScan(name="w", dtype="float32", shape=(4,), num_values=4, num_subnormal=4, largest=1e-39),)
