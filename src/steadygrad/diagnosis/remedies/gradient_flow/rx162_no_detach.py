"""Remove the detach, or the scope without gradients, between the parameters and the loss.

What it sees
    Trainable parameters whose output is detached before it reaches the loss, or computed under no_grad.

Why it hurts
    Both stop every gradient, wanted or not.

Smallest example
    features = encoder(x)  # not encoder(x).detach()
    # instead of
    features = encoder(x).detach()

What to do
    Remove it, or freeze the parameters on purpose.

Safety
    Behavioural: more parameters learn.

References
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.blocked_gradients import KeepGradients
from ...interventions.rejoin_graph import Rejoin
from ...locate.lost_gradient import CHOOSING, COMPARING, FLAT
from ...replay.replay_step import ReplayChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule(
    "RX162", "no_detach", "Remove the detach, or the scope without gradients, between the parameters and the loss."
)

_EXITS = ("detach", ".data", ".numpy(", ".tolist(", ".item(", "torch.tensor(", "new_tensor(")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    origin = context.origin
    if context.evidence.kind != "zero_gradient" or origin is None or not origin.stack:
        return
    file, _, line = origin.stack[0].rpartition(":")
    text = origin.code_line or ""
    words = [word for word in _EXITS if word in text]
    if words:

        def rejoined() -> ReplayChange:
            return Rejoin((file, int(line)), context.replayable.facts.owners)

        change = f"what {words[0].strip('.(')} takes out of the graph stays in it"
        yield Proposal(code=RULE.code, slug="no_detach", change=change, make=rejoined)
    if "detach" not in text and origin.module is not None and origin.op not in FLAT | CHOOSING | COMPARING:
        name = origin.module
        change = f"{name or 'the model'} runs with gradients on"
        yield Proposal(
            code=RULE.code, slug="no_detach", change=change, make=lambda: KeepGradients(name), if_needed=bool(words)
        )
