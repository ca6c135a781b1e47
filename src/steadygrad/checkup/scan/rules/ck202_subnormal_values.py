"""Many values of a tensor are subnormal: at the lower end of what their type can hold.

What it sees
    At least 5 % of the values that are not zero lie below the smallest normal number of the type: 6.1e-5 in float16,
    1.2e-38 in float32 and bfloat16.

Why it hurts
    Subnormal numbers have lost digits, down to a single bit, and the next halving makes them zero. Much hardware treats
    them as zero at once. Second moments in float16 are the usual victims.

Smallest example
    moments = (gradient * gradient).half()  # a gradient of 1e-3 gives 1e-6: three bits are left
    # fixed
    moments = gradient.float() * gradient.float()

What to do
    Keep the tensor in bfloat16 or float32, or scale the loss so that its gradients are larger.

Safety
    A note: the values are finite. The 8-bit types use their subnormal numbers as a matter of course and are passed
    over.

References
    https://arxiv.org/abs/1710.03740
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from .finding_text import finding, share_of

RULE = Rule("CK202", "subnormal_values", "Many values of a tensor are subnormal.")
SHARE = 0.05


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    for tensor in tensors:
        others = tensor.num_counted - tensor.num_zero
        if tensor.num_subnormal and tensor.num_subnormal >= SHARE * others:
            detail = f"{share_of(tensor.num_subnormal, tensor, of=tensor.num_counted)} subnormal in {tensor.dtype}"
            yield finding(RULE, ScanLevel.NOTE, tensor, detail, where=False)


SPECIMEN = (
    TensorScan(name="v", dtype="float16", shape=(8,), num_values=8, num_counted=8, num_subnormal=5, largest=1e-4),
)
NEAR_MISS = (
    TensorScan(name="w", dtype="float16", shape=(999,), num_values=999, num_counted=999, num_subnormal=3, largest=0.1),
)
