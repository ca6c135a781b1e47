"""Weights are normalised over the rows of the batch, and summed over another dimension.

What it sees
    In three losses, inside of the network, a softmax over dimension 0, in which the rows of the batch lie, whose output
    weighs values that are then summed over another dimension while the rows stay.

Why it hurts
    The weights of one row do not add up to one: how much it counts depends on which other rows are in its batch, and
    alone, as it will be used, all of its weights are one.

Smallest example
    pooled = (torch.softmax(scores, dim=0) * values).sum(1)   # scores: (rows, time, 1)
    # fixed
    pooled = (torch.softmax(scores, dim=1) * values).sum(1)

What to do
    Normalise over the dimension that is summed.

Safety
    It changes nothing and reads no values. Tensors that have the time in dimension 0, in which the sum goes over
    dimension 0 as well, are not reported, nor are a softmax in the loss, and similarities of rows with rows.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Softmax.html
"""

from __future__ import annotations

import torch

from ....records import Finding
from ....records.rules import Rule
from ..autograd_graph import VIEWS, GraphNode, LossGraph, walk
from ..graph_findings import seen

RULE = Rule(
    "SY459",
    "softmax_over_rows",
    "Weights are normalised over the rows of the batch, and summed over another dimension.",
)
_MOVES = frozenset({"Permute", "Transpose", "T", "Movedim", "Swapaxes"})


def judge(graph: LossGraph) -> Finding | None:
    """Pure; reads names, edges and shapes."""
    for node in graph.named("Softmax"):
        shape, dim = graph.shape(node), graph.number(node, "dim")
        if shape is None or dim is None or len(shape) < 2 or int(dim) % len(shape) != 0:
            continue
        rows = shape[0]
        if rows < 2 or rows in shape[1:] or max(shape[1:]) < 2 or graph.num_rows not in (None, rows):
            continue
        if _sums_another(graph, node, rows) and next(graph.layers_after(node), None) is not None:
            layer = graph.layer_before(node)
            return seen(
                RULE,
                graph.called(layer[1]) if layer is not None else "softmax",
                f"weights of shape {shape} add up to one over {rows} rows, and are summed over another dimension",
                shape=list(shape),
            )
    return None


def _sums_another(graph: LossGraph, node: GraphNode, rows: int) -> bool:
    """Whether all that uses the weights multiplies them and sums over dimensions other than that of the rows."""
    used = [graph.nodes[index] for index in node.consumers]
    return bool(used) and all(_use(graph, each, rows) for each in used)


def _use(graph: LossGraph, node: GraphNode, rows: int) -> bool:
    shape = graph.shape(node)
    if shape is None or shape[:1] != (rows,):
        return False
    if node.name in VIEWS - _MOVES or node.name == "Transpose":
        return _sums_another(graph, node, rows)
    if node.name == "Bmm":
        return True
    if node.name != "Mul" or any(len(graph.shape(each) or ()) != len(shape) for each in graph.inputs(node)):
        return False  # weights that belong to all rows alike
    return bool(node.consumers) and all(_is_sum(graph, graph.nodes[index], shape) for index in node.consumers)


def _is_sum(graph: LossGraph, node: GraphNode, before: tuple[int, ...]) -> bool:
    """Whether a sum leaves the rows and takes another dimension away."""
    after = graph.shape(node)
    return node.name == "Sum" and after is not None and after[:1] == before[:1] and after != before


def _pooled(dim: int) -> LossGraph:
    score, head = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)
    values = torch.randn(6, 5, 4)
    return walk(head((torch.softmax(score(values), dim) * values).sum(1)).pow(2).mean(), num_rows=6)


def SPECIMEN() -> tuple[LossGraph]:
    return (_pooled(0),)


def NEAR_MISS() -> tuple[LossGraph]:
    """The weights of each row add up to one."""
    return (_pooled(1),)
