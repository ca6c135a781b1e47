"""Nearly all units of a ReLU layer output 0 for every row.

What it sees
    At least 97 % of the units of a hidden layer with 8 units or more are off in every row of the batch, whether the
    ReLU is a module or a function call. Of the units that are left, those rows use many. While training it is looked
    for at the first four updates and at three later ones, and reported once three batches show it.

Why it hurts
    A unit that is off for every row gets no gradient and never comes back. What is behind the layer sees a constant.

Smallest example
    layer = torch.nn.Linear(8, 64); torch.nn.init.constant_(layer.bias, -100.0); h = torch.relu(layer(x))
    # fixed
    layer = torch.nn.Linear(8, 64); h = torch.relu(layer(x))

What to do
    Lower the learning rate or warm it up, normalise the inputs of the layer, check the sign and size of its bias; a
    leaky ReLU lets such units come back.

Safety
    It changes nothing. Sparse layers (each unit is on in a few rows), experts with fewer than 8 rows and hinge losses
    (no layer follows) are not reported. Saved activations behind checkpointing are not looked at.

References
    https://arxiv.org/abs/1903.06733
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ....records import Finding
from ....records.rules import Rule
from ..autograd_graph import GraphNode, LossGraph, walk
from ..graph_findings import NAMED, read, seen

RULE = Rule("SY442", "dead_relu", "Nearly all units of a ReLU layer output 0 for every row.")
DEAD = 0.97
FIRING = 0.1
"""Live units of a dead layer are on in at least so many of the rows, and in three; in a sparse layer each is on in a
few."""
MIN_UNITS, MIN_ROWS = 8, 8
_GELU_OFF = -6.0
"""Below this the output and the slope of a GELU are zero to seven digits."""
_SOME = 32
"""Rows, and places of each, that are looked at first; all of them only where these show nothing."""
_MOST = 256


@dataclass(frozen=True, slots=True)
class _Activation:
    """What a ReLU-like function was given or gave out: a unit is off where its value is at or below `off`."""

    layer: str
    values: Tensor
    unit_dim: int
    off: float

    @property
    def units(self) -> int:
        return self.values.shape[self.unit_dim]

    def seems_dead(self) -> Tensor:
        """The share of the units that are off in some of the rows. One small reduction."""
        sizes = list(self.values.shape)
        steps = [1 if dim == self.unit_dim else max(1, size // _SOME) for dim, size in enumerate(sizes)]
        some = self.values[tuple(slice(None, None, step) for step in steps)]
        return (some.movedim(self.unit_dim, -1).reshape(-1, self.units).amax(0) <= self.off).float().mean()

    def dead(self) -> float:
        """The share of the units that are off in every row; 0 for a layer that is merely sparse. Reads all of it."""
        others = [dim for dim in range(self.values.dim()) if dim != self.unit_dim]
        on = (self.values > self.off).float().mean(others)
        live = on > 0
        rows = self.values.numel() // self.units
        share, firing = read([(~live).float().mean(), on.sum() / live.sum().clamp(min=1)])
        return share if share == 1.0 or firing >= max(FIRING, 3 / rows) else 0.0


def judge(graph: LossGraph) -> Finding | None:
    """One small reduction for each ReLU and one host read; whole activations are read only of a suspicious layer."""
    found = list(islice((each for node in graph.nodes if (each := _activation(graph, node)) is not None), _MOST))
    states: dict[str, list[tuple[float, int]]] = {}
    for each, share in zip(found, read([each.seems_dead() for each in found]), strict=True):
        states.setdefault(each.layer, []).append((each.dead() if share >= DEAD else 0.0, each.units))
    # A layer that is called several times is dead where none of the calls uses it.
    bad = {name: calls for name, calls in states.items() if all(dead >= DEAD for dead, _ in calls)}
    if not bad:
        return None
    name = next(iter(bad))
    share, units = bad[name][0]
    return seen(
        RULE,
        name,
        f"{share:.0%} of the {units} units after {name} output 0 for every row of this batch",
        share=share,
        units=units,
        names=list(bad)[:NAMED],
    )


def _activation(graph: LossGraph, node: GraphNode) -> _Activation | None:
    """The activation of a hidden layer that has enough units and rows; None for anything else."""
    match node.name:
        case "Relu":
            values, off = graph.saved(node, "result"), 0.0
        case "Hardtanh" if graph.number(node, "min_val") == 0:
            values, off = graph.saved(node, "self"), 0.0
        case "Clamp" | "ClampMin" if graph.number(node, "min") == 0:
            values, off = graph.saved(node, "self"), 0.0
        case "Gelu":
            values, off = graph.saved(node, "self"), _GELU_OFF
        case _:
            return None
    layer = graph.layer_before(node)
    if values is None or layer is None or values.dim() < 2 or not values.is_floating_point():
        return None
    unit_dim = 1 if layer[0].name == "Convolution" and values.dim() > 2 else values.dim() - 1
    units = values.shape[unit_dim]
    if units < MIN_UNITS or values.numel() < MIN_ROWS * units or next(graph.layers_after(node), None) is None:
        return None
    return _Activation(graph.called(layer[1]), values, unit_dim, off)


def _network(bias: float) -> LossGraph:
    first, last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 2)
    torch.nn.init.constant_(first.bias, bias)
    return walk(last(torch.relu(first(torch.randn(32, 4)))).sum(), names={id(first.weight): "first.weight"})


def SPECIMEN() -> tuple[LossGraph]:
    return (_network(bias=-100.0),)


def NEAR_MISS() -> tuple[LossGraph]:
    """Half of the units are off in each row, and other units in other rows."""
    return (_network(bias=0.0),)
