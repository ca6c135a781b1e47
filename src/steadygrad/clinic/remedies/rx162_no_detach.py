"""Remove the detach between the parameters and the loss.

What it sees
    Trainable parameters whose output is detached before it reaches the loss.

Why it hurts
    detach stops every gradient, wanted or not.

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
from ..surgery.calls import CallSurgery
from ..ward import Proposal, Ward

RULE = Rule("RX162", "no_detach", "Remove the detach between the parameters and the loss.")


def propose(ward: Ward) -> Iterator[Proposal]:
    origin = ward.origin
    if ward.evidence.kind != "zero_gradient" or origin is None or not origin.stack:
        return
    file, _, line = origin.stack[0].rpartition(":")
    if "detach" not in (origin.code_line or ""):
        return

    def make() -> Change:
        site = (file, int(line))
        return CallSurgery(site, "detach", lambda func, args, kwargs: args[0], ward.patient.facts.owners)

    yield Proposal(code=RULE.code, slug="no_detach", change="the tensor is not detached", make=make)
