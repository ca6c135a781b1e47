"""Whether a copy of the weights that was to be their moving average is still what it was before the first update.

A few numbers of the weights are copied at the first update. At two later updates they are compared with the other
modules of the process, and with dictionaries and lists that the program's objects, modules and functions hold, which
have tensors of the same names or shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...tensors.foreign_objects import getattr, isinstance
from ...tensors.living_objects import living, living_of
from ...tensors.readable_tensors import describable
from ..program_frames import frames_of_program, variables_of
from .average_lines import averages_thrown_away, modules_of_program

AT = (4, 12, 100)
"""Updates at which copies are looked for, in a walk over all objects of the process. At the first it is only noted how
often each was written to: as it was made, a tensor may have been written to many times."""
_WEIGHTS, _NUMBERS = 4, 16
_WRITTEN = 0.5
"""A copy was written at so many of the updates."""


class UnmovedCopies:
    """The weights of one model as they were at first."""

    def __init__(self) -> None:
        self._first: dict[str, Tensor] = {}
        self._places: dict[str, int] = {}
        self._shapes: list[torch.Size] = []
        self._versions: dict[int, int] = {}
        self._looked_at = 0

    @torch.no_grad()
    def before_first_update(self, model: nn.Module) -> None:
        """Copy a few numbers. Does not wait for a device."""
        named = dict(model.named_parameters())
        if not all(map(describable, named.values())):
            return  # some have no values yet
        self._shapes = [parameter.shape for parameter in named.values()]
        trained = [name for name, each in named.items() if each.requires_grad and each.dim() > 1]
        for name in trained[:: max(1, len(trained) // _WEIGHTS)][:_WEIGHTS]:
            self._first[name] = _some(named[name]).clone()
            self._places[name] = list(named).index(name)

    @torch.no_grad()
    def later(self, model: nn.Module, updates: int, *, reads: bool = True) -> str:
        """How the average never takes place: a sentence, or nothing. Reads the device; without `reads` only where a
        line of the program throws an average away."""
        if not self._first or not (reads or averages_thrown_away()):
            return ""
        if not self._all_moved(dict(model.named_parameters())):
            return ""
        unmoved, written, versions, since = 0, 0, dict[int, int](), updates - self._looked_at
        before, self._versions, self._looked_at = self._versions, versions, updates
        for copy in self._copies(model):
            if any(not torch.equal(_some(copy[name]), first) for name, first in self._first.items()):
                return ""  # there is one that follows, or a state of a later time
            unmoved += 1
            versions.update((id(copy[name]), copy[name]._version) for name in self._first)
            known = all(id(copy[name]) in before for name in self._first)
            written = max(written, min(copy[n]._version - before[id(copy[n])] for n in self._first) if known else 0)
        if not unmoved or updates <= AT[0]:
            return ""
        still = f"a copy of the weights is after {updates} updates what it was before the first"
        if written > _WRITTEN * since:
            return f"{still}, though it was written {written} times in the last {since}"
        line = averages_thrown_away()
        return f"{still}, and {line} computes an average of weights that is kept nowhere" if line else ""

    def _all_moved(self, named: Mapping[str, Tensor]) -> bool:
        known = {name: named.get(name) for name in self._first}
        return all(
            now is not None and describable(now) and not torch.equal(_some(now), self._first[name])
            for name, now in known.items()
        )

    def _copies(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Other tensors of the process, by the names of the model's weights that are compared."""
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters() if describable(parameter)}
        for module in living(nn.Module):
            parts: Any = getattr(module, "_modules", None)  # a scripted module's has no `get`; one half made has none
            around = parts and "module" in parts and parts["module"] is model
            if module is not model and parts is not None and not around and len(parts) <= 4096:
                yield from self._fitting(dict(module.named_parameters()), own)
        for held in held_by_program():
            if isinstance(held, dict):
                yield from self._fitting(held, own)
            elif len(held) == len(self._shapes) and isinstance(held[0], Tensor):
                yield from self._fitting({name: held[place] for name, place in self._places.items()}, own)

    def _fitting(self, given: Mapping[str, Tensor], own: set[int]) -> Iterator[dict[str, Tensor]]:
        found = {name: given[name] for name in self._first if name in given}
        if len(found) < len(self._first):
            return
        for name, first in self._first.items():
            value = found[name]
            if not isinstance(value, Tensor) or not describable(value) or value.dim() < 2 or value.dtype != first.dtype:
                return
            if value.device != first.device or value.shape != self._shapes[self._places[name]]:
                return
            if value.untyped_storage().data_ptr() in own:
                return
        yield found


def _some(tensor: Tensor) -> Tensor:
    """Numbers from all over a tensor."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _NUMBERS)][:_NUMBERS]


def held_by_program() -> Iterator[dict[Any, Any] | list[Any]]:
    """Dictionaries and lists in the modules of the program, in its running functions, and in the attributes of objects
    whose class is the program's own."""
    modules = modules_of_program()
    places = [vars(module) for module in modules] + [variables_of(frame) for frame in frames_of_program()]
    names = {module.__name__ for module in modules}
    for each in living_of(lambda kind: kind.__module__ in names and not issubclass(kind, nn.Module)):
        if isinstance(found := getattr(each, "__dict__", None), dict):
            places.append(found)
    for place in places:
        yield from [value for value in list(place.values()) if type(value) in (dict, OrderedDict, list)]
