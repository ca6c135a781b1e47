"""Nearly all units of a hidden tanh or sigmoid sit on its flat ends.

What it sees
    At least 90 % of the outputs of a hidden tanh or sigmoid are within 0.001 of an end of its range, in the batch.

Why it hurts
    The slope there is below 0.002: hardly any gradient passes, and the layers before it do not learn. The usual causes
    are inputs that were not normalised and weights that are far too large.

Smallest example
    h = torch.tanh(torch.nn.Linear(8, 64)(1000 * x))
    # fixed
    h = torch.tanh(torch.nn.Linear(8, 64)((1000 * x - mean) / std))

What to do
    Normalise the inputs of the layer or add a norm before the activation; check the scale of its initial weights.

Safety
    It changes nothing. Gates (multiplied with another activation), outputs (no layer of the same network follows) and
    layers with fewer than 8 units are not reported. Saved activations behind checkpointing are not looked at.

References
    https://proceedings.mlr.press/v9/glorot10a.html
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ....records import Finding
from ....records.rules import Rule
from ...tensors.foreign_objects import getattr, isinstance
from ..autograd_graph import VIEWS, GraphNode, LossGraph, walk
from ..graph_findings import NAMED, Held, optimizer_of, read, seen

RULE = Rule("SY443", "saturated_activation", "Nearly all units of a hidden tanh or sigmoid sit on its flat ends.")
SATURATED, _GATES = 0.9, 0.95
NEAR = 1e-3
MIN_UNITS, MIN_ROWS = 8, 8
_SOME = 4096
_FLAT = 10.0
"""Where a sigmoid or tanh is flat, and what a state between -1 and 1 adds makes no difference."""
_MOST = 256


def judge(graph: LossGraph, held: Held = ()) -> Finding | None:
    """One small reduction for each activation and one host read."""
    owner = optimizer_of(held)
    found = list(islice((each for node in graph.nodes if (each := _hidden(graph, node, owner)) is not None), _MOST))
    shares: dict[str, list[float]] = {}
    for (name, _, _), share in zip(found, read([_flat(values, low) for _, values, low in found]), strict=True):
        shares.setdefault(name, []).append(share)
    bad = {name: min(each) for name, each in shares.items() if min(each) >= SATURATED}
    if not bad:
        return None
    name, share = next(iter(bad.items()))
    return seen(
        RULE,
        name,
        f"{share:.0%} of the outputs of the activation after {name} are at the flat ends of its range",
        share=share,
        names=list(bad)[:NAMED],
    )


def share_of_gates(module: nn.RNNBase, inputs: Any) -> float:
    """The share of the gates of a recurrent layer, or of its tanh units, that its input alone holds at a flat end."""
    values = getattr(inputs, "data", inputs)
    if module.mode == "RNN_RELU" or not isinstance(values, Tensor) or values.shape[-1] != module.input_size:
        return 0.0
    some = values.detach().reshape(-1, module.input_size)[:_SOME].float()
    weights: dict[str, Tensor] = dict(module.named_parameters())
    before = some @ weights["weight_ih_l0"].detach().float().T
    if module.bias:
        before += weights["bias_ih_l0"].detach().float()
    return float((before.abs() > _FLAT).float().mean())


def judge_gates(shares: Mapping[str, float]) -> Finding | None:
    """Pure. The shares of recurrent layers by their names."""
    name, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if share < _GATES:
        return None
    return seen(
        RULE,
        name,
        f"{share:.0%} of the gates of {name} are fully open or closed whatever the state is: its inputs are too large",
        share=share,
        names=[name],
    )


def _hidden(graph: LossGraph, node: GraphNode, owner: dict[int, int]) -> tuple[str, Tensor, float] | None:
    """(layer, outputs, lower end) of an activation between two layers of one network; None for anything else."""
    if node.name not in ("Tanh", "Sigmoid") or _is_gate(graph, node):
        return None
    values, layer = graph.saved(node, "result"), graph.layer_before(node)
    if values is None or layer is None or values.dim() < 2 or values.shape[-1] < MIN_UNITS:
        return None
    if values.numel() < MIN_ROWS * values.shape[-1]:
        return None
    # A generator's output enters a discriminator: what follows belongs to another network, with another optimizer.
    home = owner.get(id(layer[1]), 0)
    if not any(owner.get(id(weight), 0) == home for weight in graph.layers_after(node)):
        return None
    return graph.called(layer[1]), values, -1.0 if node.name == "Tanh" else 0.0


def _is_gate(graph: LossGraph, node: GraphNode) -> bool:
    for index in node.consumers:
        consumer = graph.nodes[index]
        if consumer.name in ("Mul", "Addcmul", "Lerp") and len(graph.inputs(consumer)) > 1:
            return True
        if (consumer.name in VIEWS or consumer.name == "Rsub") and _is_gate(graph, consumer):
            return True
    return False


def _flat(values: Tensor, low: float) -> Tensor:
    some = values.reshape(-1)[:: max(1, values.numel() // _SOME)].float()
    return ((some > 1 - NEAR) | (some < low + NEAR)).float().mean()


def _network(scale: float) -> LossGraph:
    first, last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 2)
    inputs = torch.linspace(-1, 1, 128).reshape(32, 4) + 2
    torch.nn.init.constant_(first.weight, 1.0)
    names = {id(first.weight): "first.weight"}
    return walk(last(torch.tanh(first(inputs * scale))).sum(), names=names)


def SPECIMEN() -> tuple[LossGraph]:
    return (_network(scale=1000.0),)


def NEAR_MISS() -> tuple[LossGraph]:
    """The same inputs after normalisation."""
    return (_network(scale=0.1),)
