"""The loss has no minimum: larger scores make it smaller without limit.

What it sees
    In the graph of the loss, a negative log-likelihood or a Kullback-Leibler divergence is applied to the output of a
    layer whose values nothing has normalised; or a binary cross-entropy has targets far outside of 0 to 1.

Why it hurts
    Such a loss is linear in the scores: it falls for ever while the weights grow, whatever the data are. The curve
    looks as if the model learned.

Smallest example
    loss = F.nll_loss(model(x), y)   # model returns raw scores
    # fixed
    loss = F.nll_loss(F.log_softmax(model(x), -1), y)

What to do
    Take `log_softmax` of the scores, or use `F.cross_entropy`. For a binary cross-entropy give targets between 0 and 1,
    such as `(y + 1) / 2` for labels of -1 and 1.

Safety
    It changes nothing. Raw scores in a likelihood are seen at every entry point; the rest needs the values of the loss
    before its backward, which `steady run` sees. Scores that enter another term as well, as in a cross-entropy written
    by hand, are not reported, nor are densities, targets that are a little outside of 0 to 1, and targets that the
    program may mask afterwards.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .....records import Finding
from .....records.rules import Rule
from ...autograd_graph import GraphNode, LossGraph, walk
from ...graph_findings import read, seen
from .loss_inputs import divergences, is_reduced

RULE = Rule("SY456", "loss_without_minimum", "The loss has no minimum: larger scores make it smaller without limit.")
_LAYERS = frozenset({"Addmm", "Mm", "Convolution", "Linear", "Bmm", "Addbmm", "Baddbmm"})
_OUTSIDE, _SHARE = 0.5, 0.01
"""How far a target must lie outside of 0 to 1, and which share of them: softened labels leave the range a little."""


def judge(graph: LossGraph) -> Finding | None:
    """Reads names and edges, and two numbers of the targets of a binary cross-entropy."""
    for node in graph.named("NllLoss", "NllLoss2D"):
        first = next(iter(graph.inputs(node)), None)
        if first is not None and (weight := _scores(graph, first)) is not None:
            return _of_scores(graph, weight, "a negative log-likelihood", node.name)
    for found in divergences(graph):
        if (weight := _scores(graph, found.given)) is not None:
            return _of_scores(graph, weight, "a Kullback-Leibler divergence", "KlDiv")
    return _of_targets(graph)


def _of_scores(graph: LossGraph, weight: Tensor, what: str, name: str) -> Finding:
    layer = graph.called(weight)
    detail = f"the output of {layer} enters {what}, which expects log-probabilities: the loss is linear in it"
    return seen(RULE, layer, detail, loss=name)


def _scores(graph: LossGraph, node: GraphNode) -> Tensor | None:
    """The weight of the layer whose output this is, where nothing else uses it and it has several columns."""
    while True:
        shape = graph.shape(node)
        if len(node.consumers) != 1 or shape is None or len(shape) < 2 or shape[1] < 2:
            return None
        below = graph.through_views(node)
        if below is node:
            break
        node = graph.inputs(node)[0]
    if node.name == "Add" and len(inputs := graph.inputs(node)) == 2:  # a bias that is added
        others = [each for each in inputs if graph.through_views(each).leaf is None]
        if len(others) != 1:
            return None
        node = graph.through_views(others[0])
    matrices = graph.matrices(node)
    return matrices[0] if node.name in _LAYERS and len(matrices) == 1 else None


def _of_targets(graph: LossGraph) -> Finding | None:
    for node in graph.named("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
        target = graph.saved(node, "target")
        if target is None or not target.numel() or not is_reduced(graph, node):
            continue
        if graph.saved(node, "weight") is not None:
            continue  # it may leave out just these
        outside = ((target < -_OUTSIDE) | (target > 1 + _OUTSIDE)).float().mean()
        share, low, high = read([outside, target.min().float(), target.max().float()])
        if share >= _SHARE:
            layer = graph.layer_before(node)
            return seen(
                RULE,
                graph.called(layer[1]) if layer is not None else "targets",
                f"the targets of a binary cross-entropy reach from {low:.4g} to {high:.4g}, and it is bounded between "
                "0 and 1 only",
                loss=node.name,
                low=low,
                high=high,
                share=share,
            )
    return None


def _likelihood(*, normalised: bool) -> LossGraph:
    scores = torch.nn.Linear(4, 3)(torch.randn(5, 4))
    return walk(F.nll_loss(F.log_softmax(scores, -1) if normalised else scores, torch.tensor([0, 1, 2, 0, 1])))


def SPECIMEN() -> tuple[LossGraph]:
    return (_likelihood(normalised=False),)


def NEAR_MISS() -> tuple[LossGraph]:
    return (_likelihood(normalised=True),)
