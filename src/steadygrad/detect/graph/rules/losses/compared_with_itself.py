"""The loss compares predictions with themselves, and their gradients cancel.

What it sees
    In three losses, both sides of a difference depend on the same parameters, all of their values are the same, bit for
    bit, and only the difference enters the loss: the ratio of a policy to itself, the error of a tensor against itself.

Why it hurts
    What comes back through one side is taken off again by the other: the term has no gradient at all. Other terms, such
    as an entropy bonus, train the model alone.

Smallest example
    ratio = torch.exp(policy.log_prob(a) - policy.log_prob(a))
    # fixed
    ratio = torch.exp(policy.log_prob(a) - old_log_prob)   # kept from when `a` was drawn, without gradient

What to do
    Keep the other side from before, without gradient: `old_log_prob = policy.log_prob(a).detach()` when acting.

    Weights that are compared with themselves are reported as SY448: copy those that the weights are to stay near.

Safety
    It changes nothing and is seen under `steady run`. A side without gradient, as in the first pass over fresh samples,
    is not reported, nor are two networks that begin alike, or a difference that is zero in the first steps only.

References
    https://arxiv.org/abs/1707.06347
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .....records import Finding
from .....records.rules import Rule
from ...autograd_graph import GraphNode, LossGraph, walk
from ...graph_findings import read, seen
from .. import reference_aliased

RULE = Rule(
    "SY458", "compared_with_itself", "The loss compares predictions with themselves, and their gradients cancel."
)
_MIN_VALUES = 8
_MEANS = {"Exp": ("result", 1.0), "Pow": ("self", 0.0)}
"""What is saved of an op of a difference, and what it is where the difference is zero."""


def judge(graph: LossGraph) -> Finding | None:
    """One small reduction for each such op, and one host read for those whose sides are of the same parameters."""
    for node in graph.named("Exp", "Pow", "MseLoss"):
        both = _both_sides(graph, node)
        if (
            both is None
            or not _all_equal(graph, node)
            or (leaves := _leaves(graph, both[0])) != _leaves(graph, both[1])
        ):
            continue
        named = [graph.nodes[index].leaf for index in sorted(leaves)]
        name = next((graph.called(leaf) for leaf in named if leaf is not None), "")
        if name and _are_weights(graph, *both):
            what = f"a term of the loss compares {name} with itself: what it is to stay near is no copy of the weights"
            return seen(reference_aliased.RULE, name, what, op=node.name)
        if name:
            what = "a ratio" if node.name == "Exp" else "an error"
            return seen(
                RULE, name, f"{what} in the loss compares the same values, and both sides have a gradient", op=node.name
            )
    return None


def _are_weights(graph: LossGraph, one: GraphNode, other: GraphNode) -> bool:
    """Whether both sides are parameters, as in a distance from earlier weights."""
    return graph.through_views(one).leaf is not None and graph.through_views(other).leaf is not None


def _both_sides(graph: LossGraph, node: GraphNode) -> tuple[GraphNode, GraphNode] | None:
    inputs = graph.inputs(node)
    if node.name == "MseLoss":
        return (inputs[0], inputs[1]) if len(inputs) == 2 else None
    if len(inputs) != 1 or inputs[0].name != "Sub" or len(inputs[0].consumers) != 1:
        return None
    sides = graph.inputs(inputs[0])
    return (sides[0], sides[1]) if len(sides) == 2 and graph.number(inputs[0], "alpha") in (None, 1) else None


def _all_equal(graph: LossGraph, node: GraphNode) -> bool:
    if node.name == "MseLoss":
        one, other = graph.saved(node, "self"), graph.saved(node, "target")
        if one is None or other is None or one.numel() < _MIN_VALUES or one.shape != other.shape:
            return False
        return read([(one != other).float().sum()]) == [0.0]
    what, value = _MEANS[node.name]
    values = graph.saved(node, what)
    return values is not None and values.numel() >= _MIN_VALUES and read([(values != value).float().sum()]) == [0.0]


def _leaves(graph: LossGraph, node: GraphNode) -> set[int]:
    """The places of all leaves below a node."""
    found, waiting, known = set(), [node.index], {node.index}
    while waiting:
        each = graph.nodes[waiting.pop()]
        if each.leaf is not None:
            found.add(each.index)
        new = {index for index in each.next if index is not None} - known
        known |= new
        waiting.extend(new)
    return found


def _ratio(*, kept: bool) -> LossGraph:
    policy, states = torch.nn.Linear(4, 3), torch.ones(8, 4)
    names = {id(policy.weight): "policy.weight", id(policy.bias): "policy.bias"}
    now, before = (F.log_softmax(policy(states), -1)[:, 0] for _ in range(2))
    return walk(torch.exp(now - (before.detach() if kept else before)).mean(), names=names)


def SPECIMEN() -> tuple[LossGraph]:
    return (_ratio(kept=False),)


def NEAR_MISS() -> tuple[LossGraph]:
    """The log-probabilities from when the actions were drawn, which need no gradient."""
    return (_ratio(kept=True),)
