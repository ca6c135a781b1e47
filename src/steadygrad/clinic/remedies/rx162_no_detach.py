"""Remove the detach, or the scope without gradients, between the parameters and the loss.

What it sees
    Trainable parameters whose output is detached before it reaches the loss, or computed under no_grad.

Why it hurts
    Both stop every gradient, wanted or not.

Smallest example
    features = encoder(x)  # not encoder(x).detach()

What to do
    Remove it, or freeze the parameters on purpose.

Safety
    Behavioural: more parameters learn.

References
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Rule
from ..replay import Change
from ..silent import CHOOSING, FLAT
from ..surgery.calls import CallSurgery
from ..surgery.gradients import KeepGradients
from ..ward import Proposal, Ward

RULE = Rule(
    "RX162", "no_detach", "Remove the detach, or the scope without gradients, between the parameters and the loss."
)


def propose(ward: Ward) -> Iterator[Proposal]:
    origin = ward.origin
    if ward.evidence.kind != "zero_gradient" or origin is None or not origin.stack:
        return
    file, _, line = origin.stack[0].rpartition(":")
    if "detach" in (origin.code_line or ""):

        def attached() -> Change:
            site = (file, int(line))
            return CallSurgery(site, "detach", lambda func, args, kwargs: args[0], ward.patient.facts.owners)

        yield Proposal(code=RULE.code, slug="no_detach", change="the tensor is not detached", make=attached)
    elif origin.module is not None and origin.op not in FLAT | CHOOSING:
        name = origin.module
        change = f"{name or 'the model'} runs with gradients on"
        yield Proposal(code=RULE.code, slug="no_detach", change=change, make=lambda: KeepGradients(name))
