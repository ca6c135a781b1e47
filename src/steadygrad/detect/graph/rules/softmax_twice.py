"""Probabilities are fed to a loss that expects logits.

What it sees
    In the graph of the loss, a log-softmax (cross-entropy) is applied to the output of a softmax or sigmoid, or a
    binary cross-entropy of logits to the output of a sigmoid or softmax, with nothing but views and casts in between.

Why it hurts
    The second softmax sees numbers between 0 and 1: with K classes the loss cannot fall below log(e + K - 1) - 1, and
    the gradient passes through two flat functions. Nothing is non-finite, and the run learns slowly or stops early.

Smallest example
    loss = F.cross_entropy(torch.softmax(model(x), -1), y)
    # fixed
    loss = F.cross_entropy(model(x), y)

What to do
    Give the loss the logits and take softmax or sigmoid for predictions only.

Safety
    It changes nothing and reads no values. A log-softmax of a log-softmax is harmless and not reported; nor is the
    negative log-likelihood of the logarithm of probabilities, or a scaled softmax (a temperature).

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ....records import Finding
from ....records.rules import Rule
from ..autograd_graph import GraphNode, LossGraph, walk
from ..graph_findings import seen

RULE = Rule("SY440", "softmax_twice", "Probabilities are fed to a loss that expects logits.")
_WANT_LOGITS = {
    "LogSoftmax": "cross-entropy (log_softmax)",
    "BinaryCrossEntropyWithLogits": "binary cross-entropy of logits",
}


def judge(graph: LossGraph) -> Finding | None:
    """Pure; reads names, edges and a few shapes."""
    for node in graph.named(*_WANT_LOGITS):
        first = next(iter(graph.inputs(node)), None)
        made = _probabilities(graph, node, first) if first is not None else None
        if made is not None:
            layer = graph.layer_before(node)
            return seen(
                RULE,
                graph.called(layer[1]) if layer is not None else made,
                f"the output of {made} enters {_WANT_LOGITS[node.name]}, which expects logits",
                function=made,
                loss=node.name,
                shape=list(graph.shape(node) or ()),
            )
    return None


def _probabilities(graph: LossGraph, node: GraphNode, first: GraphNode) -> str | None:
    """What made the probabilities that enter a loss of logits; None where they are no probabilities."""
    source = graph.through_views(first)
    if source.name == "Sigmoid":
        return "sigmoid"
    if source.name == "Exp" and any(graph.through_views(each).name == "LogSoftmax" for each in graph.inputs(source)):
        return "exp(log_softmax)"
    if source.name != "Softmax":
        return None
    if source is first and node.name == "LogSoftmax":
        # One softmax over the classes, another over something else, is no repetition.
        size = len(graph.shape(node) or (0,))
        one, other = graph.number(node, "dim"), graph.number(source, "dim")
        if one is not None and other is not None and int(one) % size != int(other) % size:
            return None
    return "softmax"


def _logits() -> torch.Tensor:
    logits: torch.Tensor = torch.nn.Linear(4, 3)(torch.randn(5, 4))
    return logits


def SPECIMEN() -> tuple[LossGraph]:
    return (walk(F.cross_entropy(torch.softmax(_logits(), -1), torch.tensor([0, 1, 2, 0, 1]))),)


def NEAR_MISS() -> tuple[LossGraph]:
    """The logarithm of a softmax, as the negative log-likelihood expects it."""
    return (walk(F.nll_loss(torch.log(torch.softmax(_logits(), -1)), torch.tensor([0, 1, 2, 0, 1]))),)
