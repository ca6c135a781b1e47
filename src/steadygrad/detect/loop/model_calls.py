"""The calls of a model since the last update: on which tensors, in which mode, with or without gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ..tensors.nested_tensors import tensors_in

_MAX_CALLS = 64
_MAX_TENSORS = 8

Inputs = frozenset[tuple[int, tuple[int, ...]]]
"""Where the tensors of a call lie in memory, and their shapes: views of one batch are found again."""


@dataclass(slots=True)
class CallsSeen:
    """What was called since an update."""

    trained: list[Inputs] = field(default_factory=list)
    training: bool | None = None
    in_eval: tuple[str, ...] = ()
    empty_statistics: tuple[str, ...] = ()
    input_gradient: bool = False
    """A gradient of the input was asked for, as an attack or a penalty does."""
    evaluated: list[Inputs] = field(default_factory=list)
    moves_statistics: bool = False
    pulls: list[Tensor] = field(default_factory=list)
    """For each backward pass: how many predictions got a gradient, and the sum of its magnitudes. On their device."""
    changes_values: bool = False
    """A pass without gradients ran with dropout on."""

    def strange(self) -> list[Inputs]:
        """Passes without gradients over tensors that no pass with gradients was given."""
        known = frozenset().union(*self.trained) if self.trained else frozenset()
        return [inputs for inputs in self.evaluated if not inputs & known]

    def read_pulls(self) -> tuple[tuple[float, float], ...]:
        """Reads the device."""
        if len({tensor.device for tensor in self.pulls}) != 1:
            return ()
        return tuple((row[0], row[1]) for row in torch.stack(self.pulls).tolist())

    @property
    def compares_itself(self) -> bool:
        known = frozenset().union(*self.trained) if self.trained else frozenset()
        return any(inputs & known for inputs in self.evaluated)

    @property
    def over_one_batch(self) -> bool:
        """Whether all passes with gradients were given the same tensors."""
        first = self.trained[0] if self.trained else frozenset()
        return bool(first) and all(inputs & first for inputs in self.trained)


class ModeModules:
    """The parts of a model that act differently in training and in evaluation. Keeps none of them alive."""

    def __init__(self, model: nn.Module) -> None:
        self._dropout = [(name, weakref.ref(part)) for name, part in model.named_modules() if _drops(part)]
        self._statistics = [
            (name, weakref.ref(part))
            for name, part in model.named_modules()
            if isinstance(part, _NormBase) and part.track_running_stats
        ]

    def __bool__(self) -> bool:
        return bool(self._dropout or self._statistics)

    def in_eval(self) -> tuple[str, ...]:
        return tuple(name for name, part in self._parts() if not part.training)

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        for name, reference in (*self._dropout, *self._statistics):
            if (part := reference()) is not None:
                yield name, part

    def drops(self) -> bool:
        """Whether dropout is on anywhere."""
        return any((part := reference()) is not None and part.training for _, reference in self._dropout)

    def moves_statistics(self) -> bool:
        """Whether a pass now would move running statistics. A cumulative average is estimated anew on purpose."""
        parts = [part for _, reference in self._statistics if (part := reference()) is not None]
        return any(part.training and part.momentum is not None for part in parts)

    def empty_statistics(self) -> tuple[str, ...]:
        """Normalisation in evaluation mode whose statistics are those of no data. Reads the device, a few numbers."""
        found = []
        for name, reference in self._statistics:
            part = reference()
            if part is None or part.training:
                continue
            counter = getattr(part, "num_batches_tracked", None)
            mean, variance = part.running_mean, part.running_var
            if counter is None or mean is None or variance is None or int(counter) != 0:
                continue
            if not bool(mean.any()) and bool((variance == 1).all()):
                found.append(name)
        return tuple(found)


def _drops(part: nn.Module) -> bool:
    if isinstance(part, _DropoutNd):
        return part.p > 0
    share = getattr(part, "dropout", None)
    return isinstance(part, nn.MultiheadAttention | nn.RNNBase) and isinstance(share, int | float) and share > 0


def inputs_of(arguments: Any) -> tuple[Inputs, bool]:
    """Where the tensors of a call lie, and whether one of them asks for a gradient. Host only."""
    found, wants_gradient = set(), False
    for tensor in tensors_in(arguments)[:_MAX_TENSORS]:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type == "meta":
            continue
        found.add((tensor.data_ptr(), tuple(tensor.shape)))
        wants_gradient |= tensor.requires_grad and tensor.is_leaf
    return frozenset(found), wants_gradient


def note_call(seen: CallsSeen, modules: ModeModules, model: nn.Module, arguments: Any) -> None:
    """Enter one call of the model as it begins."""
    if len(seen.trained) + len(seen.evaluated) >= _MAX_CALLS:
        return
    inputs, wants_gradient = inputs_of(arguments)
    if torch.is_grad_enabled():
        seen.trained.append(inputs)
        seen.input_gradient |= wants_gradient
        seen.training = model.training if seen.training is None else seen.training and model.training
        if modules and not seen.in_eval:
            seen.in_eval = modules.in_eval()
    elif model.training and modules:
        seen.evaluated.append(inputs)
        seen.moves_statistics |= modules.moves_statistics()
        seen.changes_values |= modules.drops()
    else:
        seen.evaluated.append(inputs)
