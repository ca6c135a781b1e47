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
from torch.utils.weak import TensorWeakRef

from ..tensors.foreign_objects import getattr, isinstance
from ..tensors.nested_tensors import tensors_in
from ..tensors.readable_tensors import describable

_MAX_CALLS = 64
_MAX_TENSORS = 8
_MAX_LOOKS = 2


@dataclass(slots=True, eq=False)
class CallSeen:
    """One call of the model: its tensors as they were, by reference and place, and which other calls were given the
    same. A place in memory says nothing once its tensor is gone: another one may lie there."""

    trained: bool
    tensors: list[tuple[TensorWeakRef, int, torch.Size]]
    same_as: set[int] = field(default_factory=set)

    def has(self, place: int, shape: torch.Size) -> bool:
        return any(p == place and s == shape and reference() is not None for reference, p, s in self.tensors)


@dataclass(slots=True)
class CallsSeen:
    """What was called since an update."""

    calls: list[CallSeen] = field(default_factory=list)
    training: bool | None = None
    in_eval: tuple[str, ...] = ()
    empty_statistics: tuple[str, ...] = ()
    unmoved_statistics: tuple[str, ...] = ()
    dropout: bool | None = None
    input_gradient: bool = False
    """A gradient of the input was asked for, as an attack or a penalty does."""
    moves_statistics: bool = False
    pulls: list[Tensor] = field(default_factory=list)
    """For each backward pass: how many predictions got a gradient, and the sum of its magnitudes. On their device."""
    changes_values: bool = False
    """A pass without gradients ran with dropout on."""

    @property
    def trained(self) -> list[int]:
        return [number for number, call in enumerate(self.calls) if call.trained]

    def strange(self) -> tuple[int, int]:
        """Passes without gradients over tensors that no pass with gradients was given: how many, and over how many
        different ones."""
        trained = set(self.trained)
        found = [n for n, call in enumerate(self.calls) if not call.trained and not call.same_as & trained]
        return len(found), sum(1 for n in found if not any(other < n for other in self.calls[n].same_as))

    @property
    def compares_itself(self) -> bool:
        trained = set(self.trained)
        return any(call.same_as & trained for call in self.calls if not call.trained)

    @property
    def over_one_batch(self) -> bool:
        """Whether all passes with gradients were given the same tensors."""
        first, *others = self.trained or [-1]
        return bool(others) and all(first in self.calls[number].same_as for number in others)

    def read_pulls(self) -> tuple[tuple[float, float], ...]:
        """Reads the device."""
        if len({tensor.device for tensor in self.pulls}) != 1:
            return ()
        return tuple((row[0], row[1]) for row in torch.stack(self.pulls).tolist())


class ModeModules:
    """The parts of a model that act differently in training and in evaluation. Keeps none of them alive."""

    def __init__(self, model: nn.Module) -> None:
        self._dropout = [(name, weakref.ref(part)) for name, part in model.named_modules() if _drops(part)]
        self._homes = [weakref.ref(model.get_submodule(name.rpartition(".")[0])) for name, _ in self._dropout if name]
        """The modules that hold dropout."""
        self._statistics = [
            (name, weakref.ref(part))
            for name, part in model.named_modules()
            if isinstance(part, _NormBase) and part.track_running_stats
        ]

        self._looks = 0

    def __bool__(self) -> bool:
        return bool(self._dropout or self._statistics)

    def in_eval(self) -> tuple[str, ...]:
        return tuple(name for name, part in self._parts() if not part.training)

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        for name, reference in (*self._dropout, *self._statistics):
            if (part := reference()) is not None:
                yield name, part

    def dropout_on(self, before: bool | None) -> bool | None:
        """Whether dropout is on anywhere, or was in an earlier call; None for a model without, or where all of it is in
        parts that are frozen."""
        if before or self.drops():
            return True
        homes = [home for reference in self._homes if (home := reference()) is not None]
        return False if any(p.requires_grad for home in homes for p in home.parameters()) else None

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
            if part.weight is not None and not part.weight.requires_grad:
                continue  # frozen, and in evaluation mode on purpose
            if _num_batches(part) == 0 and _at_start(part):
                found.append(name)
        return tuple(found)

    def unmoved_statistics(self) -> tuple[str, ...]:
        """The same where training has passed through it with a momentum of 0. Reads the device for such alone,
        and only a few times."""
        if self._looks >= _MAX_LOOKS:
            return ()
        parts = [(name, part) for name, reference in self._statistics if (part := reference()) is not None]
        held = [(name, part) for name, part in parts if part.momentum == 0.0 and not part.training]
        self._looks += bool(held)
        return tuple(name for name, part in held if _num_batches(part) > 0 and _at_start(part))


def _num_batches(part: _NormBase) -> int:
    """How many batches its statistics are of; -1 where it does not count them."""
    counter = getattr(part, "num_batches_tracked", None)
    return -1 if counter is None else int(counter)


def _at_start(part: _NormBase) -> bool:
    """Whether running mean and variance are still 0 and 1."""
    mean, variance = part.running_mean, part.running_var
    return mean is not None and variance is not None and not bool(mean.any()) and bool((variance == 1).all())


def _drops(part: nn.Module) -> bool:
    if isinstance(part, _DropoutNd):
        return part.p > 0
    share = getattr(part, "dropout", None)
    return isinstance(part, nn.MultiheadAttention | nn.RNNBase) and isinstance(share, int | float) and share > 0


def note_call(seen: CallsSeen, modules: ModeModules, model: nn.Module, arguments: Any) -> None:
    """Enter one call of the model as it begins. Host only."""
    if len(seen.calls) >= _MAX_CALLS:
        return
    trained = torch.is_grad_enabled()
    call, number = CallSeen(trained, []), len(seen.calls)
    for tensor in tensors_in(arguments)[:_MAX_TENSORS]:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or not describable(tensor):
            continue
        place, shape = tensor.data_ptr(), tensor.shape
        for other, earlier in enumerate(seen.calls):
            if earlier.has(place, shape):
                earlier.same_as.add(number)
                call.same_as.add(other)
        call.tensors.append((TensorWeakRef(tensor), place, shape))
        seen.input_gradient |= trained and tensor.requires_grad and tensor.is_leaf
    seen.calls.append(call)
    if trained:
        seen.training = model.training if seen.training is None else seen.training and model.training
        if modules and not seen.in_eval:
            seen.in_eval = modules.in_eval()
        seen.dropout = modules.dropout_on(seen.dropout)
    elif modules and not model.training:
        seen.unmoved_statistics = seen.unmoved_statistics or modules.unmoved_statistics()
    elif modules:
        seen.moves_statistics |= modules.moves_statistics()
        seen.changes_values |= modules.drops()


def callable_parts(module: nn.Module) -> list[nn.Module]:
    """The module, or where it cannot be called (a `ModuleDict`) the outermost parts that can."""
    if type(module).forward is not nn.Module.forward:
        return [module]
    return [part for child in module.children() for part in callable_parts(child)]
