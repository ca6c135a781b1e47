"""A matrix in a checkpoint holds nothing but zeros.

What it sees
    A floating-point tensor of two or more dimensions in which every value is zero.

Why it hurts
    As a weight it passes nothing on: a layer that was never trained, never loaded, or emptied by a failed save. As a
    moment it says that its weight has had no gradient so far.

Smallest example
    layer.weight.data.zero_()
    # fixed
    torch.nn.init.normal_(layer.weight, std=0.02)

What to do
    See whether it should be so. The second matrix of a LoRA adapter and output layers initialised to zero are, before
    training; after training they say that training did not reach them.

Safety
    A note: zeros are numbers, and a checkpoint from before the first step holds some on purpose. Vectors are passed
    over, because biases begin at zero.

References
    https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from ..formats.float_formats import float_kind
from .finding_text import finding

RULE = Rule("CK201", "all_zero", "A matrix in a checkpoint holds nothing but zeros.")


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    for tensor in tensors:
        floating = float_kind(tensor.dtype) is not None
        if floating and tensor.num_values > 1 and len(tensor.shape) >= 2 and tensor.num_zero == tensor.num_values:
            yield finding(RULE, ScanLevel.NOTE, tensor, f"all {tensor.num_values:,} values are zero", where=False)


SPECIMEN = (TensorScan(name="w", dtype="float32", shape=(2, 2), num_values=4, num_zero=4),)
NEAR_MISS = (
    TensorScan(name="w", dtype="float32", shape=(2, 2), num_values=4, num_zero=3, largest=1.0),
    TensorScan(name="bias", dtype="float32", shape=(4,), num_values=4, num_zero=4),
)
