"""Bound the argument inside the domain of the function.

What it sees
    An exponential of a large argument, a root of a slightly negative one, an arc function at the edge of its
    domain, a product that overflows.

Why it hurts
    The function is fine everywhere but at values the data was never meant to reach.

Smallest example
    torch.exp(logvar.clamp(-30, 20)); torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))
    # instead of
    torch.exp(logvar); torch.acos(c)

What to do
    Clamp before the call, strictly inside the domain.

Safety
    Close: exact inside the bounds.

References
    https://github.com/geoopt/geoopt/pull/79
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ...rules import Rule
from ..codeline import with_bounds
from ..surgery.calls import on_argument, on_floats, on_tensors, tiny, within_sound_range
from ..ward import Proposal, Ward

RULE = Rule("RX131", "clamp", "Bound the argument inside the domain of the function.")
BOUNDED = frozenset({"exp_overflow", "cancellation", "domain_edge_grad", "fp16_overflow"})
HALF_BOUND = 200.0
TAME = 10.0
"""Of an argument no larger than this nothing that grows overflows."""
BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (-80.0, 20.0),
    "expm1": (-80.0, 20.0),
    "exp2": (-100.0, 28.0),
    "sinh": (-20.0, 20.0),
    "cosh": (-20.0, 20.0),
    "i0": (-20.0, 20.0),
    "special_i1": (-20.0, 20.0),
    "acos": (-1.0, 1.0),
    "arccos": (-1.0, 1.0),
    "asin": (-1.0, 1.0),
    "arcsin": (-1.0, 1.0),
    "atanh": (-1.0, 1.0),
    "erfinv": (-1.0, 1.0),
    "logit": (0.0, 1.0),
    "special_ndtri": (0.0, 1.0),
    "acosh": (1.0, 1e18),
    "arccosh": (1.0, 1e18),
}


def _inside(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Strictly inside: at the edge itself the slope is infinite."""

    def bound(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        inset = tiny(tensor) if max(abs(low), min(abs(high), 2.0)) <= 1.0 or low == 1.0 else 0.0
        half = 10.0 if tensor.dtype is torch.float16 else high
        return tensor.clamp(low + inset, min(high, half) - (inset if high <= 1.0 else 0.0))

    return bound


def propose(ward: Ward) -> Iterator[Proposal]:
    below = ward.evidence.facts.argument_negative and ward.cause in ("where_grad_trap", "log_zero")
    if ward.silent or not ward.can_operate() or not (ward.cause in BOUNDED or ward.call == "logit" or below):
        return
    if ward.call in BOUNDS or ward.evidence.op in BOUNDS:
        low, high = BOUNDS.get(ward.call) or BOUNDS[ward.evidence.op or ""]
        operate = on_argument(0, _inside(low, high))
        text = f"the argument of {ward.call} bounded to [{low}, {high}]"
    elif ward.cause == "cancellation":
        low, high = 0.0, float("inf")
        operate = on_argument(0, lambda tensor: tensor.clamp_min(tiny(tensor) ** 2))
        text = f"the argument of {ward.call} bounded at zero"
    elif ward.cause == "exp_overflow":
        low, high = -TAME, TAME
        operate = on_tensors(lambda tensor: tensor.clamp(int(-TAME), int(TAME)))
        text = f"the argument of {ward.call} bounded to [-{TAME}, {TAME}]"
    elif ward.cause == "fp16_overflow":
        low, high = -HALF_BOUND, HALF_BOUND
        operate = on_floats(lambda tensor: tensor.clamp(-HALF_BOUND, HALF_BOUND))
        text = f"the arguments of {ward.call} bounded to [-{HALF_BOUND}, {HALF_BOUND}]"
    else:
        yield _sound_range(ward)
        return
    yield Proposal(
        code=RULE.code,
        slug="clamp",
        change=text,
        make=ward.operation(operate),
        safety="close",
        code_change=with_bounds(ward.origin.code_line if ward.origin else None, ward.call, low, high),
    )
    if ward.cause != "fp16_overflow":
        yield _sound_range(ward)


def _sound_range(ward: Ward) -> Proposal:
    return Proposal(
        code=RULE.code,
        slug="clamp",
        change=f"the argument of {ward.call} bounded to where {ward.call} is finite and so is its slope",
        make=ward.operation(within_sound_range),
        safety="close",
        if_needed=True,
    )
