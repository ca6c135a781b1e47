"""Parameters that should learn receive no gradient, or no optimizer holds them.

What it sees
    A trainable parameter that the forward uses and whose gradient is missing or zero in every step; one with
    gradients that no optimizer holds.

Why it hurts
    The loss may even fall, carried by the few parameters that do learn.

Smallest example
    checkpoint(block, x, use_reentrant=True)  # x does not require grad: nothing inside block learns
    # fixed
    checkpoint(block, x, use_reentrant=False)

What to do
    Let the input require grad or checkpoint without re-entry; remove the detach; build the optimizer after the
    model is final.

Safety
    Behavioural: more parameters learn.

References
    https://github.com/huggingface/transformers/issues/42489
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match, listed

RULE = Rule(
    "DX503", "no_trainable_grad", "Parameters that should learn receive no gradient, or no optimizer holds them."
)


def match(e: Evidence) -> Match | None:
    if e.kind == "outside_optimizer":
        return Match(0.95, f"{listed(e.names)}: gradients, and in no optimizer")
    if e.kind == "zero_gradient" and e.gradient_in_float32 is not True:
        return Match(0.93, f"{listed(e.names)}: trainable, used, and never given a gradient")
    return None
