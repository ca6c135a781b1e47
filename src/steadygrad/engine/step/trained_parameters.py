"""The parameters that are trained, with a name each, looked at anew each step.

A layer unfrozen, added or replaced in the middle of a run is guarded from that step on. Where nothing changed, looking
costs a comparison of identities for each parameter.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, overload

from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...records.errors import UsageError

T = TypeVar("T")
_MOST_ENTRIES = 1024
"""Entries of a list or dictionary that are still looked at as an optimizer's state."""


class TrainedParameters:
    """Names and parameters in the order in which `clip_grad_norm_(model.parameters(), ...)` would sum them."""

    def __init__(self, model: nn.Module, loss_fn: Any, optimizers: Sequence[Optimizer]) -> None:
        self._roots = [("", model)] + ([("loss_fn.", loss_fn)] if isinstance(loss_fn, nn.Module) else [])
        self._optimizers = optimizers
        self._tree, self._members = ModuleTree([root for _, root in self._roots]), GroupMembers(optimizers)
        self._followers: list[Callable[[], None]] = []
        self.names: list[str] = []
        self.parameters: list[Tensor] = []
        self._collect()
        owned = {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
        if not any(id(p) in owned for _, root in self._roots for p in root.parameters()):
            raise UsageError(
                "None of the optimizer's parameters belong to the model, so training would change nothing in it. Was "
                "the optimizer made before the model was moved, wrapped or re-created? Make it from model.parameters()."
            )

    def tell(self, follower: Callable[[], None]) -> None:
        """`follower()` is called when names and parameters have changed."""
        self._followers.append(follower)

    def refresh(self) -> bool:
        """Look for modules that were replaced, and parameters that were unfrozen, added or replaced. True if there are
        some: the followers have been told."""
        modules, members = self._tree.changed(), self._members.changed()
        if not (modules or members or any(p.requires_grad for p in self._frozen)):
            return False
        known = set(map(id, self.parameters))
        self._collect()
        if not modules and known == set(map(id, self.parameters)):
            return False
        for follower in self._followers:
            follower()
        return True

    def _collect(self) -> None:
        named: dict[int, tuple[str, Tensor]] = {}
        frozen: dict[int, Tensor] = {}
        for prefix, root in self._roots:
            for name, found in root.named_parameters():
                if found.requires_grad:
                    named.setdefault(id(found), (prefix + clean_name(name), found))
                else:
                    frozen[id(found)] = found
        owned = [p for optimizer in self._optimizers for p in parameters_of(optimizer)]
        for index, parameter in enumerate(owned):
            if parameter.requires_grad:
                named.setdefault(id(parameter), (f"optimizer_only.{index}", parameter))
            else:
                frozen[id(parameter)] = parameter
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if frozen.pop(id(parameter), None) is not None:  # frozen since: it stays among the guarded ones
                named[id(parameter)] = (name, parameter)
        self.names = [name for name, _ in named.values()]
        self.parameters = [parameter for _, parameter in named.values()]
        self._frozen = list(frozen.values())


class ModuleTree:
    """Which modules a model has. A program may add, remove, wrap or replace some in the middle of a run."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._roots = roots
        self._look()

    def _look(self) -> None:
        homes = [module._modules for root in self._roots for module in root.modules()]
        self._homes = [home for home in homes if isinstance(home, dict)]  # that of a scripted module is none
        self._children = list(chain.from_iterable(map(dict.values, self._homes)))

    def changed(self) -> bool:
        """Whether there are others than when this was last asked. Host only, tens of nanoseconds a module."""
        now = list(chain.from_iterable(map(dict.values, self._homes)))
        if identical(now, self._children):
            return False
        self._look()
        return True


class GroupMembers:
    """Which parameters the groups of some optimizers have."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: list[Any] = []
        self.changed()

    def changed(self) -> bool:
        """Whether they have others than when this was last asked. Host only, tens of nanoseconds each."""
        now: list[Any] = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                now += group["params"]
                now.append(None)  # the end of a group
        if identical(now, self._known):
            return False
        self._known = now
        return True


def identical(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both hold the same objects in the same order. Host only."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of all groups, in order."""
    found: list[Tensor] = []
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def states_of(optimizer: Optimizer) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """The optimizer's state of each parameter. `own_state` is the rest: torch allows other keys, such as a step count
    for all parameters."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, Tensor) and isinstance(state, dict):
            yield parameter, state


def inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that one keeps in its attributes, which make its update (SAM, Lookahead); not what a wrapper shows
    as its own state."""
    kept = [
        each for value in vars(optimizer).values() for each in (value if isinstance(value, list | tuple) else [value])
    ]
    inner = [each for each in kept if isinstance(each, Optimizer) and each.state is not optimizer.state]
    return list({id(each): each for each in inner if each is not optimizer}.values())


def own_state(optimizer: Optimizer) -> dict[Any, Any]:
    """What the optimizer keeps in its state under keys that are not parameters."""
    return {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}


def attributes_of(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer that torch does not bring along keeps in attributes: tensors and numbers, alone or in lists and
    dictionaries; not its parameters. A list or dictionary longer than `_MOST_ENTRIES` is left out: a history that grows
    would be copied whole with every snapshot."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return {}
    trained = set(map(id, parameters_of(optimizer)))
    known = ("defaults", "state", "param_groups", "_warned_capturable_if_run_uncaptured")
    kept = {key: value for key, value in vars(optimizer).items() if key not in known and not key.startswith("_optim")}
    return {key: value for key, value in kept.items() if _is_plain(value, trained)}


def _is_plain(value: Any, trained: set[int]) -> bool:
    if type(value) in (list, dict):
        items = value if type(value) is list else value.values()
        return len(value) <= _MOST_ENTRIES and all(_is_plain(item, trained) for item in items)
    return isinstance(value, bool | int | float) or (isinstance(value, Tensor) and id(value) not in trained)


def clean_name(name: str) -> str:
    """A parameter's name without the prefixes that compile and DDP put before it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def names_of(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> dict[int, str]:
    """Names of the optimizers' parameters by identity: as the model calls them, else by their place."""
    named = {id(p): clean_name(name) for name, p in model.named_parameters()} if model is not None else {}
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(parameters_of(optimizer)):
            named.setdefault(id(parameter), f"optimizer{number}.{place}")
    return {id(p): named[id(p)] for optimizer in optimizers for p in parameters_of(optimizer)}


class WeakSequence(Sequence[T]):
    """Objects, mostly optimizers, that are held elsewhere: whoever trains frees them by letting go. Those that are gone
    are left out."""

    def __init__(self, objects: Sequence[T]) -> None:
        self._references = [weakref.ref(each) for each in objects]

    def __iter__(self) -> Iterator[T]:
        return iter([found for reference in self._references if (found := reference()) is not None])

    def beside(self, values: Sequence[Any]) -> Iterator[tuple[T, Any]]:
        """Those that are left, each with the value at its place among all."""
        for reference, value in zip(self._references, values, strict=True):
            if (found := reference()) is not None:
                yield found, value

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        return list(self)[place]
