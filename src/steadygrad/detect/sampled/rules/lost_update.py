"""Updates are lost below half a unit in the last place.

What it sees
    Of the sampled elements of a bfloat16 or float16 weight that have a gradient, at most a tenth changed, in two
    samplings in a row, with a learning rate above zero and no wider copy of the weights. Of a tensor with hardly any
    elements (a temperature, a loss weight) none may have changed in three. Gains near one of which some elements move
    are noted only: so it is in most models that are kept in half precision, and the models learn.

Why it hurts
    bfloat16 has 8 bits: a weight of 1.0 cannot take a step smaller than 0.004. Rounding swallows the update each
    time anew, so waiting does not help; layers with large weights stop first.

Smallest example
    weight = torch.ones(8, dtype=torch.bfloat16); weight -= 1e-4   # still ones
    # fixed
    weight = torch.ones(8, dtype=torch.float32); weight -= 1e-4   # 0.9999

What to do
    Keep the weights in float32 and compute in bfloat16 (autocast), or use an optimizer with float32 master weights
    or stochastic rounding.

Safety
    It changes nothing. It waits while the learning rate grows: early in a warm-up it may be true for a while only.

References
    https://github.com/pytorch/pytorch/issues/120376
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..sample_helpers import HALF, StepObservation, TensorNumbers, about, in_all, warming_up

RULE = Rule("SY402", "lost_update", "Updates are lost below half a unit in the last place.")
_SAMPLINGS = 2
_SAMPLINGS_OF_FEW = 3
_FEW_MOVED = 0.1
_NEAR_ONE = 0.05
_ENOUGH = 16
_QUIET = 1e-3  # below, a gradient may be rounding: a key's bias in attention has none in exact arithmetic


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at plain numbers."""
    lost = in_all(samplings, _SAMPLINGS, _lost) + in_all(samplings, _SAMPLINGS_OF_FEW, _stuck)
    lost = [tensor for tensor in lost if not _is_gain(tensor)] or lost
    if not lost or warming_up(samplings, _SAMPLINGS):
        return None
    live, moved = sum(tensor.num_live for tensor in lost), sum(tensor.num_moved for tensor in lost)
    return about(
        RULE,
        samplings[-1],
        Severity.NOTE if all(map(_is_gain, lost)) else Severity.WARNING,
        [tensor.name for tensor in lost],
        f"hardly move: {moved} of {live} sampled {lost[0].dtype} elements with a gradient changed",
        num_live=live,
        num_moved=moved,
        dtype=lost[0].dtype,
    )


def _lost(sampling: StepObservation) -> list[TensorNumbers]:
    return [t for t in _could_move(sampling) if t.num_live >= _ENOUGH and t.num_moved <= _FEW_MOVED * t.num_live]


def _stuck(sampling: StepObservation) -> list[TensorNumbers]:
    return [t for t in _could_move(sampling) if 0 < t.num_live < _ENOUGH and t.num_moved == 0]


def _could_move(sampling: StepObservation) -> list[TensorNumbers]:
    """Those in half precision that an optimizer updates, with a gradient above rounding."""
    quiet = _QUIET * sampling.loudest
    half = [t for t in sampling.tensors if t.dtype in HALF and not t.has_master and t.lr > 0.0 and t.in_optimizer]
    return [tensor for tensor in half if tensor.grad_absmax > quiet]


def _is_gain(tensor: TensorNumbers) -> bool:
    usual = tensor.weight_norm / math.sqrt(tensor.num_sampled) if tensor.num_sampled > 1 else 0.0
    return tensor.ndim <= 1 and abs(usual - 1.0) < _NEAR_ONE and tensor.num_moved > 0


def _run(num_moved: int, dtype: str) -> list[StepObservation]:
    weight = TensorNumbers(
        name="norm.weight", dtype=dtype, lr=1e-4, grad_absmax=0.01, num_sampled=64, num_live=64, num_moved=num_moved
    )
    return [StepObservation(step=step, tensors=(weight,)) for step in (1, 2)]


def SPECIMEN() -> list[StepObservation]:
    return _run(0, "bfloat16")


def NEAR_MISS() -> list[StepObservation]:
    """Stochastic rounding moves a fifth of the elements at each step, and all of them over many."""
    return _run(13, "bfloat16")
