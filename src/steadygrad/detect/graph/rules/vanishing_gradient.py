"""Gradients shrink from layer to layer, and the first layers get none to speak of.

What it sees
    The root mean square of the gradients of weight matrices, in the order in which backward reaches them, falls by a
    similar factor from layer to layer, threefold or more, over at least four layers, to less than 0.00001 of the
    largest. A smaller factor is enough where updates leave the weights of the layer at the end as they were: what
    they take off is lost by rounding. Where the outputs shrink in the same way, so that all weight matrices get next to
    nothing beside the last bias, the gradients of the biases fall so.

Why it hurts
    The first layers stay what they were at the start: the network behind them learns from random features.

Smallest example
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Sigmoid()) for _ in range(9)]
    # fixed
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU()) for _ in range(9)]

What to do
    Use residual connections, normalisation, an activation that does not saturate, or initial weights that keep the
    variance from layer to layer.

Safety
    It changes nothing. Gradients of exactly zero (frozen, unused, an adapter at its start), one small factor between
    two parts (LayerScale), and biases and gains where the weights are well are not reported.

References
    https://proceedings.mlr.press/v9/glorot10a.html
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from ....records import Finding
from ....records.rules import Rule
from ..graph_findings import seen

RULE = Rule(
    "SY444", "vanishing_gradient", "Gradients shrink from layer to layer, and the first layers get none to speak of."
)
RATIO = 1e-5
LAYERS = 4
STEEP, FAR = 0.5, 10.0
"""Decades that a layer takes on the average, or that all take together. Plain networks of a dozen layers lose a third
of a decade a layer at the start and learn."""
ONE_DROP = 0.5
"""A single drop that makes up more of the fall than this is one small factor, and no decay from layer to layer."""


class GradientSize(NamedTuple):
    """The gradient of one parameter."""

    name: str
    norm: float
    numel: int
    ndim: int

    @property
    def rms(self) -> float:
        return self.norm / math.sqrt(max(1, self.numel))


def faint(gradients: Sequence[GradientSize]) -> list[str]:
    """The weights whose gradients are so small that an update may leave them as they are."""
    largest = max((each.rms for each in gradients), default=0.0)
    return [each.name for each in gradients if each.ndim > 1 and 0 < each.rms < RATIO * largest]


def judge(gradients: Sequence[GradientSize], unmoved: Collection[str] = ()) -> Finding | None:
    """Pure. `gradients` are in the order in which backward reaches them: the layer nearest to the loss comes first.
    `unmoved` are weights that the last update left as they were: what it took off them was lost by rounding."""
    read = [g for g in gradients if g.rms > 0 and math.isfinite(g.rms)]
    weights, biases = [g for g in read if g.ndim > 1], [g for g in read if g.ndim == 1]
    silent = len(weights) > LAYERS and len(biases) > LAYERS and _largest(weights) < RATIO * _largest(biases)
    found = _judge(biases if silent else weights, unmoved)
    if found is not None and weights[-1].rms < RATIO * _largest(read):
        return replace(found, subject=weights[-1].name)  # whichever layer gets least in this batch
    return found


def _largest(gradients: Sequence[GradientSize]) -> float:
    return max(each.rms for each in gradients)


def _judge(layers: Sequence[GradientSize], unmoved: Collection[str]) -> Finding | None:
    if len(layers) <= LAYERS:
        return None
    sizes = [math.log10(each.rms) for each in layers]
    start = max(range(len(sizes)), key=sizes.__getitem__)
    end = min(range(start, len(sizes)), key=sizes.__getitem__)
    fall = sizes[start] - sizes[end]
    if end - start < LAYERS or fall < -math.log10(RATIO):
        return None
    drops = [before - after for before, after in zip(sizes[start:end], sizes[start + 1 : end + 1], strict=True)]
    falling = sum(1 for drop in drops if drop > 0)
    if max(drops) > ONE_DROP * fall or falling < LAYERS or falling < 0.75 * len(drops):
        return None
    if median(drops) < STEEP and fall < FAR and layers[end].name not in unmoved:
        return None
    first, last = layers[end], layers[start]
    return seen(
        RULE,
        first.name,
        f"the gradient of {first.name} is {10**-fall:.1e} of that of {last.name}, and shrinks over {len(drops)} layers",
        ratio=10**-fall,
        layers=len(drops),
        names=[first.name, last.name],
    )


def _layers(*norms: float) -> tuple[Sequence[GradientSize]]:
    return ([GradientSize(f"layers.{9 - place}.weight", norm, 64, 2) for place, norm in enumerate(norms)],)


def SPECIMEN() -> tuple[Sequence[GradientSize]]:
    return _layers(1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def NEAR_MISS() -> tuple[Sequence[GradientSize]]:
    """Behind one small factor all gradients are equally small."""
    return _layers(1.0, 1.0, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6)
