"""Bound the argument inside the domain of the function.

What it sees
    An exponential of a large argument, a root of a slightly negative one, an arc function at the edge of its
    domain, a product that overflows, a cast to float8 out of its range.

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

from ....detect.tensors.foreign_objects import getattr, isinstance
from ....records.rules import Rule
from ...interventions.call_arguments import on_argument, on_floats, on_tensors, tiny, within_sound_range
from ...interventions.eight_bit_casts import saturated
from ..remedy_context import Proposal, RemedyContext
from ..suggested_line import with_bounds, with_cast_bounds
from .bounded_before_use import propose_bounds

RULE = Rule("RX131", "clamp", "Bound the argument inside the domain of the function.")
BOUNDED = frozenset({"exp_overflow", "cancellation", "domain_edge_grad", "fp16_overflow", "fp8_overflow"})
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


def propose(context: RemedyContext) -> Iterator[Proposal]:
    below = context.evidence.facts.argument_negative and context.cause in ("where_grad_trap", "log_zero")
    if (
        context.silent
        or not context.can_operate()
        or not (context.cause in BOUNDED or context.call == "logit" or below)
    ):
        return
    if below and any(propose_bounds(context, RULE.code)):
        return  # its other uses take what is below as well: RX130 bounds it before all of them
    if context.cause == "fp8_overflow":
        yield _saturated(context)
        return
    if context.call in BOUNDS or context.evidence.op in BOUNDS:
        low, high = BOUNDS.get(context.call) or BOUNDS[context.evidence.op or ""]
        operate = on_argument(0, _inside(low, high))
        text = f"the argument of {context.call} bounded to [{low}, {high}]"
    elif context.cause == "cancellation":
        low, high = 0.0, float("inf")
        operate = on_argument(0, lambda tensor: tensor.clamp_min(tiny(tensor) ** 2))
        text = f"the argument of {context.call} bounded at zero"
    elif context.cause == "exp_overflow":
        low, high = -TAME, TAME
        operate = on_tensors(lambda tensor: tensor.clamp(int(-TAME), int(TAME)))
        text = f"the argument of {context.call} bounded to [-{TAME}, {TAME}]"
    elif context.cause == "fp16_overflow":
        low, high = -HALF_BOUND, HALF_BOUND
        operate = on_floats(lambda tensor: tensor.clamp(-HALF_BOUND, HALF_BOUND))
        text = f"the arguments of {context.call} bounded to [-{HALF_BOUND}, {HALF_BOUND}]"
    else:
        yield _sound_range(context)
        return
    yield Proposal(
        code=RULE.code,
        slug="clamp",
        change=text,
        make=context.operation(operate),
        safety="close",
        own_line=True,
        code_change=with_bounds(context.origin.code_line if context.origin else None, context.call, low, high),
    )
    if context.cause != "fp16_overflow":
        yield _sound_range(context)


def _saturated(context: RemedyContext) -> Proposal:
    kind = getattr(torch, context.evidence.dtype, None)
    top = torch.finfo(kind).max if isinstance(kind, torch.dtype) else 0.0
    return Proposal(
        code=RULE.code,
        slug="clamp",
        change=f"what is cast bounded to the range of {context.evidence.dtype or 'the 8-bit float'}",
        make=context.operation(saturated),
        safety="close",
        own_line=True,
        code_change=with_cast_bounds(context.origin.code_line if context.origin else None, top) if top else None,
    )


def _sound_range(context: RemedyContext) -> Proposal:
    return Proposal(
        code=RULE.code,
        slug="clamp",
        change=f"the argument of {context.call} bounded to where {context.call} is finite and so is its slope",
        make=context.operation(within_sound_range),
        safety="close",
        if_needed=True,
    )
