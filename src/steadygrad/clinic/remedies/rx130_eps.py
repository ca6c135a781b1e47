"""Give a denominator or an argument a floor above zero.

What it sees
    A division by zero, a logarithm of zero, a root differentiated at zero.

Why it hurts
    Zero is the one value at which these have no finite result or slope.

Smallest example
    num / den.clamp_min(1e-6); torch.sqrt(v + 1e-8); torch.log(p.clamp_min(1e-12))

What to do
    Add the floor inside the call, before the function.

Safety
    Close: exact for all values above the floor.

References
    https://github.com/pytorch/pytorch/issues/4320
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...rules import Rule
from ..codeline import with_floor
from ..surgery.calls import Operate, floor_denominator, on_argument, tiny
from ..ward import Proposal, Ward

RULE = Rule("RX130", "eps", "Give a denominator or an argument a floor above zero.")
FLOORED = frozenset({"zero_division", "log_zero", "sqrt_grad_at_zero", "cancellation", "fp16_underflow"})


def _repair(call: str) -> Operate:
    """Which argument gets the floor: the denominator of a division, else the first."""
    if call in ("div", "truediv", "true_divide", "divide"):
        return on_argument(1, floor_denominator)
    if call in ("rtruediv", "rdiv", "reciprocal"):
        return on_argument(0, floor_denominator)
    if call in (
        "normalize",
        "cosine_similarity",
        "layer_norm",
        "rms_norm",
        "batch_norm",
        "group_norm",
        "instance_norm",
    ):
        return _wider_eps
    return on_argument(0, _floor)


def _floor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp_min(tiny(tensor)) if tensor.is_floating_point() else tensor


def _wider_eps(func: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return func(*args, **{**kwargs, "eps": 1e-3})  # type: ignore[operator]


def propose(ward: Ward) -> Iterator[Proposal]:
    if ward.silent or not ward.can_operate() or ward.cause not in FLOORED:
        return
    yield Proposal(
        code=RULE.code,
        slug="eps",
        change=f"a floor under the argument of {ward.call}",
        make=ward.operation(_repair(ward.call)),
        safety="close",
        code_change=with_floor(ward.origin.code_line if ward.origin else None, ward.call),
    )
