"""Which modules own an optimizer's parameters, found among all that live in the process."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ....detect.loop.no_warnings import no_warnings

# Wrappers whose own call talks to other ranks or runs compiled code: the module inside is what can be run again alone.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def find_roots(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """The outermost modules that hold any of these parameters. Walks every living object, so it is not for each step.

    Asks for an object's type and never for its `__class__`: a lazy proxy would do work when asked.
    """
    wanted = {id(parameter) for parameter in parameters}
    with no_warnings():
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module) and _is_made(thing)]
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
