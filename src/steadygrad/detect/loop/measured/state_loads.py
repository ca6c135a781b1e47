"""States that a program loads into its models, and of which nothing arrives.

Looked at when a state is taken or loaded, which is no part of a step; while a state that is the model's own memory is
kept by the program, two version numbers are compared at each update.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...tensors.foreign_objects import getattr, isinstance

_KEPT = 8
_HALF = 0.5
_FEW, _NUMBERS = 2, 16


@dataclass(slots=True, eq=False)
class _Taken:
    """A state that was taken: one of its tensors, which is the memory of a parameter, and what was written to it."""

    value: Callable[[], Tensor | None]
    version: int
    updates: int = 0


@dataclass(slots=True, eq=False)
class _Failed:
    """A load without effect: into what, the sentence about it, and one of the weights with the numbers it should have;
    none where that is decided."""

    module: Callable[[], nn.Module | None]
    sentence: str
    weight: Callable[[], Tensor | None] | None = None
    numbers: tuple[Any, ...] = ()

    @property
    def stands(self) -> bool:
        """Whether the weight is still another one."""
        if self.weight is None:
            return True
        weight = self.weight()
        return weight is not None and _some_numbers(weight, weight.dtype) != self.numbers


class StateLoads:
    """What was taken of and loaded into the models of a program. Keeps none of it alive."""

    def __init__(self) -> None:
        self._taken: deque[_Taken] = deque(maxlen=_KEPT)
        self._failed: deque[_Failed] = deque(maxlen=_KEPT)
        self.any = False
        """Whether a state was ever taken, or loaded without effect: else there is nothing to ask."""

    def wrong(self, model: nn.Module) -> str:
        """How nothing was loaded into this model or a part of it: a sentence, or nothing."""
        for each in self._failed:
            module = each.module()
            if module is not None and any(part is module for part in model.modules()) and each.stands:
                return each.sentence
        return ""

    def taken(self, state: Any) -> None:
        """A state was taken of a model."""
        value = _first(state) if isinstance(state, Mapping) else None
        if value is not None and not value.is_inference():  # one of inference counts no versions
            self._taken.append(_Taken(weakref.ref(value), value._version))
            self.any = True

    def before_update(self, parameters: Sequence[Tensor]) -> None:
        """What the program writes through a state has its effect, and is left alone. A weight that is about to be
        trained is compared now: afterwards it is another one in any case."""
        for each in [each for each in self._taken if (value := each.value()) is None or value._version != each.version]:
            self._taken.remove(each)
        for failed in [each for each in self._failed if each.weight is not None]:
            weight = failed.weight() if failed.weight is not None else None
            if any(weight is one for one in parameters):
                if failed.stands:
                    failed.weight = None
                else:
                    self._failed.remove(failed)

    def after_update(self) -> None:
        for each in self._taken:
            if (value := each.value()) is not None and value._version != each.version:
                each.version, each.updates = value._version, each.updates + 1

    def loading(self, module: nn.Module, state: Any) -> None:
        """A state is about to be loaded: is it the module's own memory, on which it was trained since?"""
        own, given = _parameters(module), _tensors(state)
        if not own or not own.keys() <= given.keys() or not all(_same_memory(own[n], given[n]) for n in own):
            return
        for each in self._taken:
            value = each.value()
            if value is None or not each.updates or value._version != each.version:
                continue
            if any(value is one for one in given.values()):
                self._failed.append(
                    _Failed(
                        weakref.ref(module),
                        "the state that was loaded is the memory of the model itself and no copy: "
                        f"it was taken {each.updates} updates before, and the weights stay those of the last update",
                    )
                )
                self.any = True
                return

    def loaded(self, module: nn.Module, state: Any, result: Any) -> None:
        """A state was loaded; `result` is what torch says of it. Has it other names only?"""
        if not getattr(result, "unexpected_keys", ()):
            return
        own, given = _parameters(module), _tensors(state)
        if not own.keys() & given.keys():
            self._of_other_names(module, own, given)

    def _of_other_names(self, module: nn.Module, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
        renamed = fitting_names(
            {name: value.shape for name, value in given.items()}, {name: value.shape for name, value in own.items()}
        )
        if renamed is None:
            return
        old, new, names = renamed
        name = max(names, key=lambda each: given[each].numel())
        weight = own[new + name.removeprefix(old)]
        self._failed.append(
            _Failed(
                weakref.ref(module),
                f"none of {len(given)} tensors was loaded with strict=False, because their names begin with "
                f"{old or 'nothing'!r} and those of the model with {new or 'nothing'!r}: {len(names)} fit with that",
                weakref.ref(weight),
                _some_numbers(given[name], weight.dtype),
            )
        )
        self.any = True


def fitting_names(given: Mapping[str, torch.Size], own: Mapping[str, torch.Size]) -> tuple[str, str, list[str]] | None:
    """The prefixes with which the names and shapes of a state are those of a model, as given and as they should be, and
    the names that fit; None where at least half of them fit with none."""
    first = next((name for name, shape in given.items() if len(shape) > 1), "")
    parts = first.split(".")
    for cut in range(len(parts)):
        suffix = ".".join(parts[cut:])
        old = first.removesuffix(suffix)
        for name in own:
            if name != suffix and not name.endswith(f".{suffix}"):
                continue
            new = name.removesuffix(suffix)
            fits = [n for n in given if n.startswith(old) and own.get(new + n.removeprefix(old)) == given[n]]
            weights = sum(len(given[each]) > 1 for each in fits)
            if weights >= _FEW and len(fits) >= _HALF * len(given):
                return old, new, fits
    return None


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in module.named_parameters() if not is_lazy(each) and not each.is_meta}


def _tensors(state: Any) -> dict[str, Tensor]:
    return {name: each for name, each in state.items() if isinstance(each, Tensor) and not each.is_meta}


def _first(state: Mapping[str, Any]) -> Tensor | None:
    return next((v for v in state.values() if isinstance(v, Tensor) and v.is_floating_point() and v.numel()), None)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    try:
        return one.data_ptr() == other.data_ptr() and one.shape == other.shape
    except RuntimeError:  # a tensor without memory
        return False


def _some_numbers(tensor: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    """Numbers from all over a tensor, as they are in this dtype. Reads the device."""
    flat = tensor.detach().flatten()
    return tuple(flat[:: max(1, flat.numel() // _NUMBERS)][:_NUMBERS].to(dtype).tolist())
