"""What enters a loss, as far as its graph shows: which values it is applied to, and whether all of them count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...autograd_graph import GraphNode, LossGraph
from ...graph_findings import read

_REDUCTIONS = frozenset({"Mean", "Sum"})
_SOME = 4096


@dataclass(frozen=True, slots=True)
class Divergence:
    """A Kullback-Leibler divergence as torch computes it, `xlogy(target, target) - target * given`, and what is given
    in the place of log-probabilities."""

    node: GraphNode
    given: GraphNode


def divergences(graph: LossGraph) -> Iterator[Divergence]:
    """Differences of something constant and a product of a distribution with something of the model. The distribution
    is no choice of one class: that could be a loss of another kind."""
    for node in graph.named("Sub"):
        inputs = graph.inputs(node)
        if len(inputs) != 1 or node.next[0] is not None or inputs[0].name != "Mul" or not is_reduced(graph, node):
            continue
        product = inputs[0]
        factors = graph.inputs(product)
        target = graph.saved(product, "self")
        target = graph.saved(product, "other") if target is None else target
        if len(factors) != 1 or len(product.consumers) != 1 or target is None or target.dim() < 2:
            continue
        if target.shape == graph.shape(product) == graph.shape(node) and _is_distribution(target):
            yield Divergence(node, factors[0])


def is_reduced(graph: LossGraph, node: GraphNode) -> bool:
    """Whether all elements of a loss go into one mean or sum: none of them can be masked afterwards."""
    if graph.number(node, "reduction") in (1, 2):
        return True
    if len(node.consumers) != 1:
        return False
    consumer = graph.nodes[node.consumers[0]]
    return consumer.name in _REDUCTIONS and graph.shape(consumer) == ()


def _is_distribution(target: torch.Tensor) -> bool:
    """Whether each row adds up to one, and not all of it in one place. Reads two numbers."""
    if not target.is_floating_point() or target.shape[-1] < 2:
        return False
    rows = target.reshape(-1, target.shape[-1])[:_SOME].float()
    error, largest = read([(rows.sum(-1) - 1).abs().max() + (rows < 0).sum(), rows.amax(-1).mean()])
    return error < 1e-2 and largest < 1 - 1e-4
