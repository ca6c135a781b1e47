"""Replace bad gradients by zeros and take the step.

What it sees
    Any step with a bad gradient; it is shown because it is so often done.

Why it hurts
    The loss stays bad, the cause stays, and momentum moves the weights anyway.

Smallest example
    torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
    # instead of
    optimizer.step()  # with the bad gradients in it

What to do
    Skip the step instead.

Safety
    Behavioural, and it hides the problem.

References
    https://github.com/huggingface/trl/issues/6702
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.batch_changes import ZeroBadGradients
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX121", "zero_nan_grads", "Replace bad gradients by zeros and take the step.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    if not context.silent:
        yield Proposal(code=RULE.code, slug="zero_nan_grads", change="bad gradients set to zero", make=ZeroBadGradients)
