"""Probabilities are fed to a loss that expects logits.

What it sees
    In the graph of the loss, a log-softmax (cross-entropy), a log-sigmoid or a binary cross-entropy of logits is
    applied to the output of a softmax or sigmoid, with nothing but views, casts and bounds in between; or a negative
    log-likelihood or a Kullback-Leibler divergence to probabilities whose logarithm was not taken. A log-softmax is
    known also where it is computed by hand, as distributions do: what is given, less its logsumexp.

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
    It changes nothing. A divergence is seen under `steady run` alone. A log-softmax of a log-softmax is harmless and
    not reported; nor is the negative log-likelihood of the logarithm of probabilities, or a scaled softmax (a
    temperature).

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .....records import Finding
from .....records.rules import Rule
from ...autograd_graph import GraphNode, LossGraph, walk
from ...graph_findings import seen
from .loss_inputs import divergences

RULE = Rule("SY440", "softmax_twice", "Probabilities are fed to a loss that expects logits.")
_WANT_LOGITS = {
    "LogSoftmax": "cross-entropy (log_softmax), which expects logits",
    "BinaryCrossEntropyWithLogits": "binary cross-entropy of logits, which expects logits",
    "Categorical": "a log-softmax (logits less their logsumexp), which expects logits",
    "LogSigmoid": "log_sigmoid, which expects logits",
    "Softmax": "another softmax, which expects logits",
    "NllLoss": "negative log-likelihood, which expects log-probabilities",
    "KlDiv": "a Kullback-Leibler divergence (kl_div), which expects log-probabilities",
    "NllLoss2D": "negative log-likelihood, which expects log-probabilities",
}
_HARMLESS = frozenset({"Clamp", "ClampMin", "ClampMax", "Add"})
"""What leaves probabilities about what they are: bounds, and a small number added."""


def judge(graph: LossGraph) -> Finding | None:
    """Pure; reads names, edges and a few shapes."""
    for node in graph.named(*_WANT_LOGITS):
        if node.name == "Softmax" and next(graph.layers_after(node), None) is not None:
            continue  # inside of the network: attention, a gate
        first = next(iter(graph.inputs(node)), None)
        made = _probabilities(graph, node, first) if first is not None else None
        if made is not None:
            return _found(graph, node, made, node.name)
    for node in graph.named("Sub"):
        given = _normalised_by_hand(graph, node)
        made = _probabilities(graph, node, given) if given is not None else None
        if made is not None and made != "sigmoid":
            return _found(graph, node, made, "Categorical")
    for each in divergences(graph):
        made = _probabilities(graph, each.node, each.given)
        if made is not None:
            return _found(graph, each.node, made, "KlDiv")
    return None


def _normalised_by_hand(graph: LossGraph, node: GraphNode) -> GraphNode | None:
    """What `given - given.logsumexp(...)` is applied to, as in `Categorical(logits=given)`; None for anything else."""
    inputs = graph.inputs(node)
    if len(inputs) != 2 or next(graph.layers_after(node), None) is not None:
        return None
    given, total = graph.through_views(inputs[0]), graph.through_views(inputs[1])
    sums = graph.inputs(total) if total.name == "Logsumexp" else []
    return inputs[0] if sums and graph.through_views(sums[0]) is given else None


def _found(graph: LossGraph, node: GraphNode, made: str, loss: str) -> Finding:
    layer = graph.layer_before(node)
    return seen(
        RULE,
        graph.called(layer[1]) if layer is not None else made,
        f"the output of {made} enters {_WANT_LOGITS[loss]}",
        function=made,
        loss=loss,
        shape=list(graph.shape(node) or ()),
    )


def _probabilities(graph: LossGraph, node: GraphNode, first: GraphNode) -> str | None:
    """What made the probabilities that enter a loss of logits; None where they are no probabilities."""
    source = graph.through_views(first)
    while source.name in _HARMLESS and len(graph.inputs(source)) == 1:
        source = graph.through_views(graph.inputs(source)[0])
    if source.name == "Sigmoid":
        return "sigmoid"
    if source.name == "Exp" and any(graph.through_views(each).name == "LogSoftmax" for each in graph.inputs(source)):
        return "exp(log_softmax)"
    if source.name != "Softmax":
        return None
    if source is first and node.name in ("LogSoftmax", "Softmax"):
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
