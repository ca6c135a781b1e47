"""What enters a loss, as far as its graph shows: which values it is applied to, and whether all of them count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...autograd_graph import VIEWS, GraphNode, LossGraph
from ...graph_findings import read

_LINEAR = VIEWS | {"Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "Stack", "Mul", "Div"}
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


def linear_nodes(graph: LossGraph) -> list[GraphNode]:
    """The nodes near the loss on which it depends linearly: sums, means, and products with constants."""
    found, waiting = dict[int, GraphNode](), graph.nodes[-1:]
    while waiting:
        node = waiting.pop()
        product = node.name in ("Mul", "Div")
        if node.index in found or node.name not in _LINEAR or (product and len(graph.inputs(node)) > 1):
            continue
        if product and node.name == "Div" and node.next[0] is None:
            continue  # one divided by it
        found[node.index] = node
        waiting += graph.inputs(node)
    return list(found.values())


def adds_a_number(graph: LossGraph) -> bool:
    """Whether something without gradient is added to single numbers on the way to the loss: a constant, or a term that
    was turned into one."""
    single = [node for node in linear_nodes(graph) if graph.shape(node) in ((), (1,))]
    return any(n.name == "Rsub" or (n.name in ("Add", "Sub") and None in n.next) for n in single)


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
