"""Weight decay takes more from the weights at every step than gradients can give back.

What it sees
    One step of the optimizer with a gradient of zero, tried on a small tensor, shrinks it by 0.2 % or more, and the
    largest update it makes cannot hold the weights of the group where they are. Or the program itself multiplies its
    weights with the same number after each of three updates. Or the optimizer adds decay to the gradient and divides
    both by their size (Adam), decay is twice the gradient or more for most of a group at two updates, and in between
    its weights lost at least half of what decay alone takes: the rate, at every step.

Why it hurts
    Weights and the gains of norms shrink towards zero whatever the loss says. Nothing is non-finite, the loss falls at
    first and then settles high.

Smallest example
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=5.0)
    # fixed
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)

What to do
    Lower `weight_decay`, usually to 0.01 to 0.1 with AdamW and to 1e-4 or less with Adam, and leave gains and biases
    in a group without decay.

Safety
    It changes nothing: a tensor of four by four takes the trial steps, with an empty state and hooks left out. An
    optimizer that cannot take a step so, or one from elsewhere on several ranks, is not judged.

References
    https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ....records import Finding
from ....records.rerun_flag import rerun
from ....records.rules import Rule
from ...make_finding import listed
from ...tensors.foreign_objects import isinstance
from ...tensors.readable_tensors import has_values
from ..decay_in_gradient import DecayInGradient
from ..graph_findings import NAMED, read, seen

RULE = Rule(
    "SY445",
    "weight_decay_dominates",
    "Weight decay takes more from the weights at every step than gradients can give back.",
)
SHRINK = 2e-3
_MARGIN = 4.0
"""An update of fixed size must be able to hold weights this much larger: its direction is never always the same."""
_SMALL = 1e-3
_OFF = {"fused": None, "foreach": None, "capturable": False, "differentiable": False, "maximize": False}


def judge(optimizers: Sequence[Optimizer], names: Mapping[int, str] | None = None) -> Finding | None:
    """Tries two or three steps for each kind of group; reads weights only of a group whose decay is that large."""
    known: dict[tuple[Any, ...], float | None] = {}
    for number, optimizer in enumerate(optimizers):
        for place, group in enumerate(optimizer.param_groups):
            key = (number, *sorted((k, repr(v)) for k, v in group.items() if k != "params"))
            if key not in known:
                known[key] = _shrink(optimizer, group)
            shrink = known[key]
            if shrink is None or shrink < SHRINK:
                continue
            lost = _not_held(optimizer, group, shrink)
            if lost:
                called = [(names or {}).get(id(weight), "a parameter") for weight in lost]
                where = f"optimizer {number}, group {place}" if len(optimizers) > 1 else f"parameter group {place}"
                return seen(
                    RULE,
                    where,
                    f"weight decay shrinks the weights of {where} by {shrink:.1%} a step, more than an update gives "
                    f"back ({listed(called)})",
                    shrink=shrink,
                    names=called[:NAMED],
                )
    return None


def first_look(decay: DecayInGradient, optimizers: Sequence[Optimizer], update: int) -> None:
    """Of optimizers that add decay to the gradient and divide both by their size."""
    decay.first(optimizers, update, _step)


def judge_divided(decay: DecayInGradient, update: int, names: Mapping[int, str] | None = None) -> Finding | None:
    """The second look at them."""
    found = decay.later(update)
    if found is None:
        return None
    optimizer, place, weights, rate = found
    called = [(names or {}).get(id(weight), "a parameter") for weight in weights]
    kind, amount = type(optimizer).__name__, optimizer.param_groups[place]["weight_decay"]
    return seen(
        RULE,
        f"parameter group {place}",
        f"{kind} adds weight decay of {amount:g} to the gradient, more than the loss gives, and divides both by their "
        f"size: every step takes about {rate:.1g} off the weights ({listed(called)})",
        decay=float(amount),
        names=called[:NAMED],
    )


def judge_by_hand(
    optimizers: Sequence[Optimizer], factor: float, names: Mapping[int, str] | None = None
) -> Finding | None:
    """All weights are multiplied with this number after each update, by the program itself."""
    shrink = 1.0 - factor
    lost = [
        weight for optimizer in optimizers for group in optimizer.param_groups
        for weight in _not_held(optimizer, group, shrink)
    ] if shrink >= SHRINK else []  # fmt: skip
    if not lost:
        return None
    called = [(names or {}).get(id(weight), "a parameter") for weight in lost]
    return seen(
        RULE,
        "the weights",
        f"the program shrinks its weights by {shrink:.1%} after each update, more than an update gives back "
        f"({listed(called)})",
        shrink=shrink,
        names=called[:NAMED],
    )


def _shrink(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """By which part a step with a gradient of zero shrinks weights of any size; None where it does not."""
    one, large = (_step(optimizer, group, value, 0.0) for value in (1.0, 1000.0))
    if one is None or large is None:
        return None
    shrink = 1.0 - one
    # Decay inside of Adam's gradient moves every weight by the same amount, whatever its size.
    return shrink if shrink > 0 and math.isclose(shrink, 1.0 - large / 1000.0, rel_tol=0.05) else None


def _not_held(optimizer: Optimizer, group: Mapping[str, Any], shrink: float) -> list[Tensor]:
    """The weights that the updates of this group are too small to hold."""
    update, small = (_step(optimizer, group, 0.0, gradient) for gradient in (1.0, _SMALL))
    if not update or not small:
        return []
    fixed = abs(small) > 0.5 * abs(update)
    weights = [each for each in group["params"] if has_values(each.detach()) and each.requires_grad]
    if not fixed:
        weights = [each for each in weights if each.grad is not None and has_values(each.grad)]
    sizes = read([_rms(each.detach()) for each in weights])
    gradients = [1 / _MARGIN] * len(sizes) if fixed else read([_rms(each.grad) for each in weights])
    reach = abs(update) / shrink
    return [each for each, size, g in zip(weights, sizes, gradients, strict=True) if size > reach * g]


def _rms(tensor: Any) -> Tensor:
    values: Tensor = tensor.detach().float().pow(2).mean().sqrt()
    return values


def _step(optimizer: Optimizer, group: Mapping[str, Any], value: float, gradient: float) -> float | None:
    """Where one step of such an optimizer takes a weight of this value; None where it cannot be tried."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim"):
        return None  # code of the program's, which may keep what it is called with
    weight = torch.nn.Parameter(torch.full((4, 4), value, dtype=torch.float64, device="cpu"))
    weight.grad = torch.full_like(weight, gradient)
    options = {key: _plain(option) for key, option in group.items() if key not in ("params", "param_names")}
    options |= {key: off for key, off in _OFF.items() if key in options}
    twin = object.__new__(kind)
    twin.__dict__.update(vars(optimizer))
    twin.__dict__.update(param_groups=[{**options, "params": [weight]}], state=defaultdict(dict))
    try:
        # Without the hooks around it: a guard or a profiler would take it for a step of the run.
        with rerun(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            inspect.unwrap(kind.step)(twin)
    except Exception:
        return None
    moved = float(weight.detach().mean())
    return moved if math.isfinite(moved) else None


def _plain(option: Any) -> Any:
    return float(option) if isinstance(option, Tensor) and option.numel() == 1 else option


def _gains(decay: float) -> tuple[list[Optimizer]]:
    gains = torch.nn.LayerNorm(8)
    return ([torch.optim.AdamW(gains.parameters(), lr=1e-2, weight_decay=decay)],)


def SPECIMEN() -> tuple[list[Optimizer]]:
    return _gains(5.0)


def NEAR_MISS() -> tuple[list[Optimizer]]:
    """The usual amount."""
    return _gains(0.1)
