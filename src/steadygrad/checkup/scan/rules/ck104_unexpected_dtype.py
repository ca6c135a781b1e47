"""A floating-point tensor is not of the type that was asked for.

What it sees
    With `--expect-dtype TYPE`, a floating-point tensor of two or more dimensions that has another type.

Why it hurts
    Weights that were to be float32 and are float16 lose updates or die in the optimizer; weights that were to be
    bfloat16 and are float32 double memory and traffic. Nothing fails: the loader casts in silence.

Smallest example
    model.half().save_pretrained("checkpoint")  # meant to be the float32 master copy
    # fixed
    model.float().save_pretrained("checkpoint")

What to do
    Save again from the copy that has the right type. A cast back does not bring lost digits back.

Safety
    Only what was asked for is checked. Vectors and scalars, such as norms and counters, may be of any type.

References
    https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from ..formats.float_formats import float_kind
from .finding_text import finding

RULE = Rule("CK104", "unexpected_dtype", "A floating-point tensor is not of the type that was asked for.")


def look(tensors: Sequence[TensorScan], expected: str | None = "float32") -> Iterator[ScanFinding]:
    for tensor in tensors:
        wrong = tensor.dtype != expected and float_kind(tensor.dtype) is not None and len(tensor.shape) >= 2
        if expected is not None and wrong:
            yield finding(RULE, ScanLevel.POISON, tensor, f"it is {tensor.dtype} and should be {expected}", where=False)


SPECIMEN = (TensorScan(name="w", dtype="float16", shape=(2, 2), num_values=4, largest=1.0),)
NEAR_MISS = (
    TensorScan(name="w", dtype="float32", shape=(2, 2), num_values=4, largest=1.0),
    TensorScan(name="norm.weight", dtype="float16", shape=(4,), num_values=4, largest=1.0),
    TensorScan(name="ids", dtype="int64", shape=(2, 2), num_values=4),
)
