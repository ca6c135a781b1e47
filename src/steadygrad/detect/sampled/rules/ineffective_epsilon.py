"""The optimizer's epsilon is zero in the precision it is added in.

What it sees
    An optimizer with an `eps` works on weights, or keeps a state, in a precision in which that number rounds to
    zero: below 3e-8 in float16.

Why it hurts
    The epsilon guards a division. Where the second moment underflows too, the update is 0/0 or m/0: finite
    gradients make NaN weights, and no check of the gradients sees it.

Smallest example
    torch.tensor(1e-8, dtype=torch.float16)   # 0.
    # fixed
    torch.tensor(1e-8, dtype=torch.float32)   # 1e-8

What to do
    Train float32 weights (under autocast the compute is still float16), keep the state in float32, or raise eps to
    1e-4 or more.

Safety
    It changes nothing; it is known before the first step.

References
    https://github.com/pytorch/pytorch/issues/147437
"""

from __future__ import annotations

from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..sample_helpers import StepObservation, TensorNumbers, about

RULE = Rule("SY403", "ineffective_epsilon", "The optimizer's epsilon is zero in the precision it is added in.")
_ROUNDS_TO_ZERO = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at the last sampling only, measured or not."""
    bad = [tensor for tensor in samplings[-1].tensors if _vanishes(tensor)]
    if not bad:
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in bad],
        f"are stepped with eps={bad[0].eps:g}, which is 0 in {_narrowest(bad[0])}",
        eps=bad[0].eps,
        dtype=_narrowest(bad[0]),
    )


def _narrowest(tensor: TensorNumbers) -> str:
    dtypes = tensor.state_dtypes or (tensor.dtype,)
    return max(dtypes, key=lambda dtype: _ROUNDS_TO_ZERO.get(dtype, 0.0))


def _vanishes(tensor: TensorNumbers) -> bool:
    if tensor.eps is None or not tensor.in_optimizer or not tensor.trainable:
        return False
    return 0.0 < tensor.eps <= _ROUNDS_TO_ZERO.get(_narrowest(tensor), 0.0)


def _weight(**fields: object) -> list[StepObservation]:
    tensor = TensorNumbers(name="head.weight", **fields)  # type: ignore[arg-type]  # plain literals below
    return [StepObservation(step=0, tensors=(tensor,), measured=False)]


def SPECIMEN() -> list[StepObservation]:
    return _weight(dtype="float16", eps=1e-8)


def NEAR_MISS() -> list[StepObservation]:
    """bfloat16 is coarse, but 1e-8 is well within its range."""
    return _weight(dtype="bfloat16", eps=1e-8)
