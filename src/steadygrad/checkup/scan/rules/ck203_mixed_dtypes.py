"""The matrices of one model have several floating-point types.

What it sees
    Among the tensors of two or more dimensions under one root of a checkpoint, a few have another floating-point type
    than the rest.

Why it hurts
    Often it is meant: a router or an output layer in float32. Where it is not, a layer was cast by hand or loaded from
    elsewhere, and arithmetic between the types casts in silence or fails.

Smallest example
    model = model.to(torch.bfloat16)
    model.head = torch.nn.Linear(64, 10)  # float32
    # fixed
    model.head = torch.nn.Linear(64, 10, dtype=torch.bfloat16)

What to do
    Look at the named tensors. `--expect-dtype` makes the type that is wanted a condition.

Safety
    A note. Quantised files, in which types are mixed by design, and vectors are passed over.

References
    https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ....records.checks.scan import ScanFinding, ScanLevel, TensorScan
from ....records.rules import Rule
from ..formats.float_formats import FLOATS, float_kind

RULE = Rule("CK203", "mixed_dtypes", "The matrices of one model have several floating-point types.")
_NAMED = 3


def look(tensors: Sequence[TensorScan]) -> Iterator[ScanFinding]:
    if any(float_kind(tensor.dtype) is None and tensor.largest for tensor in tensors):
        return  # a quantised file
    families: dict[str, list[TensorScan]] = {}
    for tensor in tensors:
        if tensor.dtype in FLOATS and len(tensor.shape) >= 2 and not tensor.evidence:
            families.setdefault(_family(tensor.name), []).append(tensor)
    for family in families.values():
        counts = Counter(tensor.dtype for tensor in family)
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        others = [tensor for tensor in family if tensor.dtype != usual]
        names = ", ".join(f"{tensor.name} is {tensor.dtype}" for tensor in others[:_NAMED])
        more = f" and {len(others) - _NAMED} more are not" if len(others) > _NAMED else ""
        detail = f"{counts[usual]} matrices are {usual}, but {names}{more}"
        yield ScanFinding(code=RULE.code, slug=RULE.slug, level=ScanLevel.NOTE, tensor=None, detail=detail)


def _family(name: str) -> str:
    """What is compared with each other: one kind of moment, or everything that is not one."""
    last = name.rpartition(".")[2]
    return last if last.startswith(("exp_avg", "max_exp_avg", "momentum", "square_avg")) else ""


SPECIMEN = (
    TensorScan(name="a.weight", dtype="bfloat16", shape=(2, 2), num_values=4, largest=1.0),
    TensorScan(name="b.weight", dtype="bfloat16", shape=(2, 2), num_values=4, largest=1.0),
    TensorScan(name="head.weight", dtype="float32", shape=(2, 2), num_values=4, largest=1.0),
)
NEAR_MISS = (
    TensorScan(name="a.weight", dtype="bfloat16", shape=(2, 2), num_values=4, largest=1.0),
    TensorScan(name="norm.weight", dtype="float32", shape=(2,), num_values=2, largest=1.0),
    TensorScan(name="state.0.exp_avg", dtype="float32", shape=(2, 2), num_values=4, largest=1.0),
)
