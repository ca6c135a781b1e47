"""Which modules own an optimizer's parameters, among all of the process."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.dropout import _DropoutNd

from ....detect.tensors.foreign_objects import getattr, isinstance
from ....detect.tensors.living_objects import living
from ...loops.patching import Patches

# Wrappers whose own call talks to other ranks or runs compiled code: the module inside is what can be run again alone.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_MAX_WALKS = 4


class ProgramModules:
    """The modules of a program, none of them kept alive.

    A module is noted when a parameter or a module is registered in it, and when it is copied or loaded. What was made
    otherwise, or before that, is found by a walk over all living objects, which takes a tenth of a second and more. It
    is made for the first search and for parameters that no known module holds, and not again after some walks in vain.
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._made_before: set[int] = set()
        self._walked = False
        self._in_vain = 0

    def listen(self, patches: Patches) -> None:
        """Note every module from now on."""
        self._walked = False  # others may have been made since the last time

        def registered(module: nn.Module, _name: str, _part: Any) -> None:
            if id(module) not in self._known:
                self._note(module)

        def restored(original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            original(module, *args, **kwargs)
            self._note(module)

        patches.also(module_hooks.register_module_parameter_registration_hook(registered).remove)
        patches.also(module_hooks.register_module_module_registration_hook(registered).remove)
        patches.around(nn.Module, "__setstate__", restored)

    def roots(self, parameters: Sequence[Tensor]) -> list[nn.Module]:
        """The outermost modules that hold any of these parameters."""
        if not self._walked:
            self._walked = True
            self._walk()
            return _roots(parameters, self._living())
        roots = _roots(parameters, self._living())
        left = _not_in(roots, parameters)
        if left and self._in_vain < _MAX_WALKS:
            self._walk()
            roots = _roots(parameters, self._living())
            self._in_vain += _not_in(roots, parameters) == left
        return roots

    def draw_besides(self, heard: Sequence[nn.Module]) -> bool:
        """Whether a module that is no part of these has dropout that is on. For the rare path: asks all modules."""
        parts = {id(part) for module in heard for part in module.modules()}
        others = (module for module in self._living() if id(module) not in parts and module.training)
        return any(_draws(part) for module in others for part in (module, *module._modules.values()))

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """The parameters of all modules that were made since `listen` and are still there, each once, named by the
        outermost module's class."""
        modules = [module for module in self._living() if id(module) not in self._made_before]
        found: dict[int, tuple[str, Tensor]] = {}
        below = {id(child) for module in modules for child in module._modules.values()}
        for root in (module for module in modules if id(module) not in below):
            for name, parameter in root.named_parameters():
                found.setdefault(id(parameter), (f"{type(root).__name__}.{name}", parameter))
        return list(found.values())

    def _note(self, module: nn.Module) -> None:
        known, before, key = self._known, self._made_before, id(module)

        def gone(reference: weakref.ref[nn.Module]) -> None:
            if known.get(key) is reference:  # else its place in memory is another's
                del known[key]
                before.discard(key)

        known[key] = weakref.ref(module, gone)

    def _living(self) -> list[nn.Module]:
        return [module for each in list(self._known.values()) if (module := each()) is not None and _is_made(module)]

    def _walk(self) -> None:
        for module in living(nn.Module):
            if id(module) not in self._known and _is_made(module) and (module._modules or module._parameters):
                self._note(module)
                self._made_before.add(id(module))


def _not_in(roots: Sequence[nn.Module], parameters: Sequence[Tensor]) -> int:
    """How many of the parameters are in none of the modules."""
    held = {id(parameter) for root in roots for parameter in root.parameters()}
    return sum(id(parameter) not in held for parameter in parameters)


def _roots(parameters: Iterable[Tensor], modules: Sequence[nn.Module]) -> list[nn.Module]:
    wanted = {id(parameter) for parameter in parameters}
    parents: dict[int, list[nn.Module]] = {}
    owners: list[nn.Module] = []
    for module in modules:
        for child in module._modules.values():
            if child is not None:
                parents.setdefault(id(child), []).append(module)
        if any(id(parameter) in wanted for parameter in module._parameters.values()):
            owners.append(module)
    return list({id(root): root for owner in owners for root in _tops(owner, parents)}.values())


def _is_made(module: nn.Module) -> bool:
    """Whether the module's `__init__` has run far enough for it to be looked into, and it is one of Python."""
    made = "_modules" in vars(module) and "_parameters" in vars(module)
    return made and not isinstance(module, torch.jit.ScriptModule)


def _draws(module: nn.Module | None) -> bool:
    rate = getattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", 0.0)
    return module is not None and module.training and isinstance(rate, float) and rate > 0.0


def _tops(module: nn.Module, parents: dict[int, list[nn.Module]]) -> list[nn.Module]:
    """The ancestors that have no parent, with communicating wrappers taken off."""
    tops: dict[int, nn.Module] = {}
    pending, seen = [module], {id(module)}
    while pending:
        current = pending.pop()
        above = [parent for parent in parents.get(id(current), []) if type(parent).__name__ not in _WRAPPERS]
        if not above:
            tops[id(current)] = current
        for parent in above:
            if id(parent) not in seen:
                seen.add(id(parent))
                pending.append(parent)
    return list(tops.values())


def runs_alone(module: nn.Module) -> bool:
    """Whether one rank may call this module without the others: no sharding, no statistics over ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return True
    kinds = {type(each).__name__ for each in module.modules()}
    sharded = any(name.startswith("FSDP") or name == "FullyShardedDataParallel" for name in kinds)
    return not sharded and not any(isinstance(each, nn.SyncBatchNorm) for each in module.modules())
