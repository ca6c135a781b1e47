"""Mask the argument before the function, not only its result.

What it sees
    A NaN in backward from a value that where or a mask had discarded.

Why it hurts
    where gives the discarded branch a gradient of zero, and zero times an infinite slope is NaN.

Smallest example
    safe = torch.where(x > 0, x, 1.0)
    y = torch.where(x > 0, torch.log(safe), 0.0)
    # instead of
    y = torch.where(x > 0, torch.log(x), 0.0)

What to do
    Replace unsafe arguments by a harmless one before the call.

Safety
    Exact: selected values and their gradients do not change.

References
    https://github.com/pytorch/pytorch/issues/108618
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ....records.rules import Rule
from ...interventions.call_arguments import masked_twice, masked_where_unsound, replaced, replaced_where_unsound
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX132", "double_where", "Mask the argument before the function, not only its result.")


def _not_positive(x: torch.Tensor) -> torch.Tensor:
    return x <= 0


def _zero(x: torch.Tensor) -> torch.Tensor:
    return x == 0


def _huge(x: torch.Tensor) -> torch.Tensor:
    return x > (10.0 if x.dtype is torch.float16 else 80.0)


def _at_edge(x: torch.Tensor) -> torch.Tensor:
    return x.abs() >= 1 - 1e-6


UNSAFE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "pow"), _not_positive),
    **dict.fromkeys(("div", "truediv", "rtruediv", "reciprocal", "true_divide", "divide"), _zero),
    **dict.fromkeys(("exp", "expm1", "sinh", "cosh"), _huge),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), _at_edge),
}


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if (
        context.silent
        or not context.can_operate()
        or context.cause not in ("where_grad_trap", "sqrt_grad_at_zero", "domain_edge_grad")
    ):
        return
    index = 1 if context.call in ("div", "truediv", "true_divide", "divide") else 0
    unsafe = UNSAFE.get(context.call) or UNSAFE.get(context.evidence.op or "")
    # Of a function that is not in the table the function itself is asked, entry by entry.
    operate = masked_twice(unsafe, index) if unsafe is not None else masked_where_unsound
    yield Proposal(
        code=RULE.code,
        slug="double_where",
        change=f"unsafe arguments of {context.call} replaced before the call",
        make=context.operation(operate),
        safety="exact",
        code_change=f"safe = torch.where(ok, x, 1.0)  # then {context.call} of safe" if context.call else None,
    )
    if context.cause == "where_grad_trap":
        # What was thrown away may be anything, and what is computed from it on the way must be a number too.
        yield Proposal(
            code=RULE.code,
            slug="double_where",
            change=f"unsafe arguments of {context.call} replaced before the call, and what comes of them with them",
            make=context.operation(replaced(unsafe, index) if unsafe is not None else replaced_where_unsound),
            safety="exact",
            if_needed=True,
        )
