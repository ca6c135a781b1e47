"""A tensor in a checkpoint holds an infinity that is no mask.

What it sees
    At least one value is infinite, in a tensor that is not a mask: a mask holds zeros and -inf and
    nothing else.

Why it hurts
    An infinity times zero, or less another infinity, is NaN: the first forward pass or the first update makes it one.

Smallest example
    weight = torch.full((2, 2), 70000.0).half()  # float16 ends at 65,504
    # fixed
    weight = torch.full((2, 2), 70000.0).bfloat16()

What to do
    If it is a cast to float16 that overflowed, keep the tensor in bfloat16 or float32. If it came out of training,
    `steady scan --since FOLDER` finds the last good checkpoint.

Safety
    A tensor of zeros and -inf alone is an additive attention mask, and is passed over.

References
    https://docs.pytorch.org/docs/stable/type_info.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from .finding_text import finding, share_of

RULE = Rule("CK102", "inf_values", "A tensor in a checkpoint holds an infinity that is no mask.")


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    for tensor in tensors:
        if tensor.num_inf and not is_mask(tensor):
            yield finding(RULE, ScanLevel.POISON, tensor, f"{share_of(tensor.num_inf, tensor)} infinite")


def is_mask(tensor: TensorScan) -> bool:
    """Zeros and -inf, at least one of each, and nothing else."""
    alone = tensor.num_zero > 0 and tensor.num_zero + tensor.num_inf == tensor.num_values
    return alone and not tensor.num_positive_extremes


SPECIMEN = (
    TensorScan(name="w", dtype="float16", shape=(4,), num_values=4, num_inf=1, num_zero=2, largest=3.0),
    TensorScan(name="v", dtype="float16", shape=(4,), num_values=4, num_inf=1, num_zero=3, num_positive_extremes=1),
)
NEAR_MISS = (TensorScan(name="mask", dtype="float32", shape=(2, 2), num_values=4, num_inf=1, num_zero=3),)
