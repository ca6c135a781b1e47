"""Labels are shifted against the inputs by the wrong amount.

What it sees
    In a causal model, one whose outputs depend on no later token, the target of each output is the last token that the
    output has seen (not shifted), or the one after the next (shifted twice). Or in a model that sees both sides the
    target of each output is the tag of the token beside it, though tags are told by their own token.

Why it hurts
    Labels that are not shifted teach to copy the input; shifted twice they teach to skip a token. The loss falls either
    way, and what the model generates is wrong.

Smallest example
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    # fixed
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

What to do
    Shift once: where the model shifts labels itself (transformers does), give it labels equal to the input ids.

Safety
    It changes nothing: the model's call is made again a few times without gradients, and all state is restored. A model
    with several outputs, one of which predicts the next token, is not reported; nor is anything where text repeats so
    that several shifts would fit.

References
    https://huggingface.co/docs/transformers/tasks/language_modeling
"""

from __future__ import annotations

from ....detect.graph.graph_findings import seen
from ....records import Finding
from ....records.rules import Rule
from ..batch_facts import BatchFacts
from .target_leak import sequence

RULE = Rule("SY451", "label_shift", "Labels are shifted against the inputs by the wrong amount.")
_WRONG = {
    0: "the last token it has seen: labels are not shifted",
    2: "the one after the next: labels are shifted twice",
}


def judge(facts: BatchFacts) -> Finding | None:
    """Pure."""
    if facts.tag_shift:
        beside = "after" if facts.tag_shift > 0 else "before"
        detail = f"the target of each prediction is the tag of the token {beside} its own, in a model that sees both"
        return seen(RULE, "labels", detail, shift=facts.tag_shift, expected=0)
    found = []
    for each in facts.sequences:
        shift, lookahead = each.shift(), each.lookahead()
        if shift is None or lookahead is None or lookahead > 0:
            continue  # what sees ahead is not a causal model; a target that it sees is a leak
        found.append(shift - lookahead)
    if not found or 1 in found or found[0] not in _WRONG:
        return None
    return seen(RULE, "labels", f"the target of each prediction is {_WRONG[found[0]]}", shift=found[0], expected=1)


def SPECIMEN() -> tuple[BatchFacts]:
    return (sequence(shift=2, lookahead=0),)


def NEAR_MISS() -> tuple[BatchFacts]:
    """The next token, as it should be."""
    return (sequence(shift=1, lookahead=0),)
