"""The targets are outside of the range that the last activation can give.

What it sees
    In three losses, a squared or absolute error compares the output of a sigmoid, tanh, softmax or ReLU with targets of
    which at least a fifth lie outside of its range, so far that a quarter of their variance cannot be predicted.

Why it hurts
    The best answer to such a target is the end of the range, where the activation is flat: a part of the loss stays for
    ever, and the gradient vanishes there.

Smallest example
    loss = F.mse_loss(torch.sigmoid(model(x)), y)   # y is standardised: below 0 for half of the rows
    # fixed
    loss = F.mse_loss(model(x), y)

What to do
    Leave the activation out, or bring the targets into its range.

Safety
    It changes nothing, reads a few numbers and is seen under `steady run`. Targets with a little noise around the ends
    of the range, and a few far outside, are not reported; nor are targets that the program may mask afterwards.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from .....records import Finding
from .....records.rules import Rule
from ...autograd_graph import GraphNode, LossGraph, walk
from ...graph_findings import read, seen
from .loss_inputs import is_reduced

RULE = Rule("SY457", "target_out_of_reach", "The targets are outside of the range that the last activation can give.")
_RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Relu": (0.0, math.inf)}
_LOSSES = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_OF_DIFFERENCE = ("Pow", "Abs")
_OUTSIDE, _OF_VARIANCE = 0.2, 0.25
_MARGIN = 0.01
"""So much of their spread may targets lie outside and count as inside."""


def judge(graph: LossGraph) -> Finding | None:
    """Three small reductions for each such loss, and one host read."""
    for node in graph.named(*_LOSSES, *_OF_DIFFERENCE):
        compared = _compared(graph, node)
        if compared is None or not is_reduced(graph, node):
            continue
        source, target = compared
        low, high = _RANGES[source.name]
        values = target.float()
        spread = values.var(correction=0)
        miss = values - values.clamp(low, high)
        share, lost, variance = read(
            [(miss.abs() > _MARGIN * spread.sqrt()).float().mean(), miss.pow(2).mean(), spread]
        )
        if variance > 0 and share >= _OUTSIDE and lost >= _OF_VARIANCE * variance:
            name = source.name.lower()
            layer = graph.layer_before(source)
            return seen(
                RULE,
                graph.called(layer[1]) if layer is not None else name,
                f"{share:.0%} of the targets are outside of the range of the {name} that makes the predictions",
                function=name,
                share=share,
                unreachable=lost / variance,
            )
    return None


def _compared(graph: LossGraph, node: GraphNode) -> tuple[GraphNode, Tensor] | None:
    """The activation that made the predictions, and the targets they are compared with."""
    inputs = graph.inputs(node)
    if len(inputs) != 1:
        return None
    if node.name in _LOSSES:
        source, target = graph.through_views(inputs[0]), graph.saved(node, "target")
        fits = source.name in _RANGES and target is not None and target.is_floating_point() and target.numel() > 1
        return (source, target) if fits and target is not None else None
    difference = inputs[0]
    error = graph.saved(node, "self")
    if difference.name != "Sub" or len(graph.inputs(difference)) != 1 or error is None or error.numel() < 2:
        return None
    source = graph.inputs(difference)[0]
    made = graph.saved(source, "result") if source.name in _RANGES else None
    if made is None or made.shape != error.shape or graph.number(difference, "alpha") not in (None, 1):
        return None
    return source, made + error if difference.next[0] is None else made - error


def _error(targets: Tensor) -> LossGraph:
    return walk(F.mse_loss(torch.sigmoid(torch.nn.Linear(4, 3)(torch.ones(6, 4))), targets))


def SPECIMEN() -> tuple[LossGraph]:
    return (_error(torch.linspace(-2, 2, 18).reshape(6, 3)),)


def NEAR_MISS() -> tuple[LossGraph]:
    """Targets between 0 and 1, with a little noise."""
    return (_error(torch.linspace(-0.05, 1.05, 18).reshape(6, 3)),)
