"""The loss compares every prediction with every target.

What it sees
    Predictions of shape (B, 1) meet targets of shape (B,), or the other way round: the elementwise difference has
    shape (B, B) and is averaged. The targets need no gradient, and B is the number of rows of the batch.

Why it hurts
    B * B pairs are averaged instead of B: the best answer is the mean of all targets for every row. The loss falls to
    the variance of the targets and stays there.

Smallest example
    loss = ((torch.nn.Linear(4, 1)(x) - y) ** 2).mean()   # x: (B, 4), y: (B,)
    # fixed
    loss = ((torch.nn.Linear(4, 1)(x).squeeze(-1) - y) ** 2).mean()

What to do
    Give predictions and targets the same shape before the loss: `squeeze(-1)` or `unsqueeze(-1)`.

Safety
    It changes nothing and reads no values. Pairwise and contrastive losses, in which both sides depend on parameters,
    and distances that are not averaged directly (a minimum, a softmax, a kernel) are not reported.

References
    https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

import torch

from .....records import Finding
from .....records.rules import Rule
from ...autograd_graph import GraphNode, LossGraph, walk
from ...graph_findings import seen

RULE = Rule("SY441", "broadcasting_loss_shape", "The loss compares every prediction with every target.")
_BINARY = frozenset({"Sub", "Rsub", "Add", "Mul", "Div", "MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss"})
_LOSSES = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
_BETWEEN = frozenset(
    {"Pow", "Abs", "Mul", "Div", "Neg", "ToCopy", "Clone", "Cosh", "Log", "Log1P", "Sqrt", "Add", "Sub"}
)
_CHOICES = frozenset({"Maximum", "Minimum", "Where"})
"""What may stand between the difference and its mean: functions of one pair at a time."""
_REDUCTIONS = frozenset({"Mean", "Sum"})
_STEPS = 24


def judge(graph: LossGraph) -> Finding | None:
    """Pure; reads names, edges and shapes."""
    for node in graph.nodes:
        rows = _rows_against_rows(graph, node)
        if rows is None or (graph.num_rows is not None and rows != graph.num_rows):
            continue
        if _is_averaged(graph, node, rows) and not _compares_predictions(graph, rows):
            layer = graph.layer_before(node)
            return seen(
                RULE,
                graph.called(layer[1]) if layer is not None else node.name,
                f"predictions and targets of {rows} rows are compared as {rows} x {rows} pairs: one of them has shape "
                f"({rows}, 1), the other ({rows},)",
                rows=rows,
                op=node.name,
                candidate=True,
            )
    return None


def _rows_against_rows(graph: LossGraph, node: GraphNode) -> int | None:
    """B where an op of predictions with B rows, and of something without gradient, has made B rows of B; else None.

    The losses of torch.nn.functional expand both sides first, so there the expansion is what is seen.
    """
    if node.name not in _BINARY and node.name != "Expand":
        return None
    inputs = graph.inputs(node)
    out = graph.shape(node)
    if len(inputs) != 1 or out is None or len(out) < 2 or out[0] != out[1] or out[0] < 2:
        return None
    given = graph.shape(inputs[0])
    if given is None or given not in ((out[0], 1, *out[2:]), out[1:]):
        return None
    if inputs[0].leaf is not None or not _computed(graph, inputs[0]):
        return None
    return out[0]


def _computed(graph: LossGraph, node: GraphNode) -> bool:
    """Whether a layer made it: a bias or a table of parameters is expanded over a batch all the time."""
    return graph.through_views(node).leaf is None


def _is_averaged(graph: LossGraph, node: GraphNode, rows: int) -> bool:
    """Whether all pairs go into a mean or sum, through functions of one pair at a time."""
    inside, waiting, is_expansion = {node.index}, [node], node.name == "Expand"
    averaged = False
    for _ in range(_STEPS):
        if not waiting:
            return averaged
        each = waiting.pop(0)
        for consumer in (graph.nodes[index] for index in each.consumers):
            shape = graph.shape(consumer)
            allowed = _LOSSES | _BINARY if is_expansion else _LOSSES | _BINARY | _BETWEEN | _CHOICES | _REDUCTIONS
            if consumer.name not in allowed or not _of_one_row(graph, consumer, inside, rows):
                return False
            if shape == () and consumer.name in _LOSSES | _REDUCTIONS:
                averaged = True
            elif shape is None or shape[:2] != (rows, rows):
                return False
            elif consumer.index not in inside:
                inside.add(consumer.index)
                waiting.append(consumer)
        is_expansion = False
    return False


def _of_one_row(graph: LossGraph, node: GraphNode, inside: set[int], rows: int) -> bool:
    """Whether what else enters an op belongs to one row, as a predicted variance does, or is a like difference."""
    for each in (each for each in graph.inputs(node) if each.index not in inside):
        while each.name in _BETWEEN and len(graph.inputs(each)) == 1 and _rows_against_rows(graph, each) is None:
            each = graph.inputs(each)[0]
        alike = _rows_against_rows(graph, each) == rows
        if not alike and graph.shape(graph.through_views(each)) not in ((), (1,), (rows,), (rows, 1)):
            return False
    return True


def _compares_predictions(graph: LossGraph, rows: int) -> bool:
    """Whether predictions are also compared with each other: a distance between sets, and no error of shapes."""
    for node in graph.named("Sub", "Mul", "Add", "Cdist", "EuclideanDist", "Mm"):
        inputs = graph.inputs(node)
        if len(inputs) == 2 and graph.shape(node) == (rows, rows):
            shapes = {graph.shape(each) for each in inputs}
            if (1, rows) in shapes or shapes == {(rows, 1), (rows,)}:
                return True
    return False


def _difference(predictions: torch.Tensor) -> LossGraph:
    return walk((predictions - torch.randn(6)).pow(2).mean(), num_rows=6)


def SPECIMEN() -> tuple[LossGraph]:
    return (_difference(torch.nn.Linear(4, 1)(torch.randn(6, 4))),)


def NEAR_MISS() -> tuple[LossGraph]:
    """The same with predictions of shape (B,)."""
    return (_difference(torch.nn.Linear(4, 1)(torch.randn(6, 4)).squeeze(-1)),)
