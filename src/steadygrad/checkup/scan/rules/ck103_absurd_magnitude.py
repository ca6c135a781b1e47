"""A tensor in a checkpoint holds a number too large to train with.

What it sees
    A finite value whose square overflows float32 (1.8e19 and above), in float32 or bfloat16; 32,768 and above in
    float16, one doubling away from infinity; above the range of float32 in float64.

Why it hurts
    Norms and second moments are sums of squares: with such a value they are infinite, clipping then multiplies by
    zero, and learning ends. A single flipped bit in the exponent of a healthy weight looks like this.

Smallest example
    weight.view(torch.int32)[0] ^= 1 << 30  # one bit of one float32, and 0.5 has become 1.7e38

What to do
    Compare with the checkpoint before. One absurd value in one tensor points to memory or a disk; many in many tensors
    to a run that diverged, and `steady scan --since FOLDER` says when.

Safety
    A mask filled with the smallest number of its type, beside zeros, is passed over. The 8-bit types are scaled to fill
    their range and have no limit of this kind.

References
    https://docs.pytorch.org/docs/stable/type_info.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from ..formats.float_formats import FLOAT16, float_kind
from .finding_text import finding

RULE = Rule("CK103", "absurd_magnitude", "A tensor in a checkpoint holds a number too large to train with.")


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    for tensor in tensors:
        limit = limit_of(tensor.dtype)
        if limit is not None and tensor.largest >= limit and not is_mask(tensor):
            yield finding(RULE, ScanLevel.POISON, tensor, f"its largest magnitude is {tensor.largest:.3g}", where=False)


def limit_of(dtype: str) -> float | None:
    """The first magnitude that is absurd in this type. The scales of quantised types are in half precision."""
    kind = float_kind(dtype) or FLOAT16
    return None if kind.absurd is None or dtype.startswith(("mxfp", "nvfp", "q8_k")) else kind.value(kind.absurd)


def is_mask(tensor: TensorScan) -> bool:
    """Zeros, and the smallest number of the type or -inf in the other places."""
    alone = tensor.num_zero + tensor.num_saturated + tensor.num_inf == tensor.num_values
    return alone and tensor.num_zero > 0 and not tensor.num_positive_extremes


SPECIMEN = (TensorScan(name="w", dtype="float32", shape=(4,), num_values=4, largest=1.7e38),)
NEAR_MISS = (
    TensorScan(name="w", dtype="float32", shape=(4,), num_values=4, largest=1.8e19),
    TensorScan(name="mask", dtype="float16", shape=(4,), num_values=4, num_zero=3, num_saturated=1, largest=65504.0),
)
