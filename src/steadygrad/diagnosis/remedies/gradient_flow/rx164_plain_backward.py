"""Let autograd differentiate the forward of a custom function itself.

What it sees
    A bad gradient that was first computed in the backward of a custom `torch.autograd.Function`, or parameters that
    go into one and get no gradient back.

Why it hurts
    A backward that was written by hand is wrong in silence: it forgets an input, or divides where the forward does not.

Smallest example
    return grad_output / norm, None   # nothing for the weight

What to do
    Compare it with autograd (`torch.autograd.gradcheck`, in float64) and correct the formula, or leave the function
    away if it saves nothing.

Safety
    Close: the forward is the same, its gradient is the true one. It may need more memory than the custom backward did.

References
    https://docs.pytorch.org/docs/stable/notes/extending.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.custom_functions import PlainBackward, function_at
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX164", "plain_backward", "Let autograd differentiate the forward of a custom function itself.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    origin = context.origin
    wanted = context.evidence.kind == "zero_gradient" or (context.evidence.backward and not context.silent)
    function = function_at(origin.stack[0]) if wanted and origin is not None and origin.stack else None
    if function is not None:
        yield Proposal(
            code=RULE.code,
            slug="plain_backward",
            change=f"autograd differentiates the forward of {function.__name__}",
            make=lambda: PlainBackward(function),
            safety="close",
        )
