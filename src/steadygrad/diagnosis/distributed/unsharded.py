"""Whole, plain parameters in the place of sharded ones, so that one rank can examine a step by itself.

A rank that has only parts of the weights cannot change a dtype, follow a remedy or compare with a reference in
float64. Where the whole state fits into memory it is gathered once, by all ranks together; then the rank that examines
has an ordinary model: FSDP2's hooks are taken off, its parameters and moments are played by whole copies, and nothing
of a replay concerns the others. Afterwards the shards are where they were, untouched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.sharded_tensors import is_sharded
from ...detect.tensors.torch_private import TorchDispatchMode
from ...engine.state.training_state import TrainingState
from ...engine.step.trained_parameters import states_of
from .parameter_swap import ParameterHolder, everything_swapped, swapped_for

_COPIES = 6
"""How often the whole state may lie in memory during an examination: it, what is restored, references, a trial."""
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class UsesCollectives(Exception):
    """A line of a replay was about to talk to the other ranks."""


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where a collective would be sent, before it is: the other ranks are not running this."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional", "c10d_functional"):
            raise UsesCollectives(f"{func} talks to the other ranks")
        return func(*args, **(kwargs or {}))


def fits_whole(program: ParameterHolder) -> bool:
    """Whether the whole state, several times over, fits into the memory of this rank. Does not communicate."""
    tensors = [*everything_swapped(program).values()]
    tensors += [v for o in program.optimizers for _, s in states_of(o) for v in s.values() if isinstance(v, Tensor)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return _COPIES * size <= _free_bytes(tensors[0].device)


@contextmanager
def whole_and_plain(program: ParameterHolder, state: TrainingState, *, mine: bool) -> Iterator[None]:
    """Collective on entry: every rank gives its parts. Inside, the rank whose examination it is has a plain model."""
    wholes = {key: _whole(parameter) for key, parameter in everything_swapped(program).items()}
    states = [
        {id(p): {name: _whole(value) for name, value in values.items()} for p, values in states_of(optimizer)}
        for optimizer in program.optimizers
    ]
    if not mine:
        del wholes, states
        yield
        return
    played = everything_swapped(program)
    copies = {key: nn.Parameter(wholes[key].clone(), requires_grad=p.requires_grad) for key, p in played.items()}
    kept = [(module, [(name, dict(getattr(module, name))) for name in _HOOKS]) for module in program.model.modules()]
    try:
        for module, _ in kept:
            _take_hooks_off(module)
        with swapped_for(program, state, copies, states), NoCollectives():  # type: ignore[no-untyped-call]
            yield
    finally:
        for module, hooks in kept:
            for name, entries in hooks:
                now = getattr(module, name)
                now.clear()
                now.update(entries)


def _take_hooks_off(module: nn.Module) -> None:
    """What fully_shard hung on this module: it gathers and lets go of parameters around each call."""
    shards = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # type: ignore[operator]
    for handle in (getattr(shards, f"_{when}_forward_hook_handle", None) for when in ("pre", "post")):
        for name in _HOOKS:
            getattr(module, name).pop(getattr(handle, "id", None), None)


def _whole(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        whole: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
        return whole.detach()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 33
