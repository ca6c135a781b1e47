"""Sharded tensors: the part that lives on this rank, and putting a part back where a whole tensor is expected.

FSDP2 keeps parameters, gradients and moments as DTensors. Snapshots, scans and clipping work on the local part: it
shares memory with the whole, needs no communication, and is all that this rank can change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .foreign_objects import hasattr, isinstance


def is_sharded(tensor: Any) -> bool:
    """Whether this is a DTensor. Asked by its attributes, because importing DTensor takes longer than a first step."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def local_of(tensor: Tensor) -> Tensor:
    """The part of a tensor that lives on this rank, sharing its memory; a plain tensor as it is."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def locals_in(value: Any) -> Any:
    """A tree of dicts, lists and tuples with every sharded tensor replaced by its local part."""
    if is_sharded(value):
        return local_of(value)
    if isinstance(value, dict):
        return {key: locals_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(locals_in(item) for item in value)
    return value


def sharded_like(part: Tensor, whole: Tensor) -> Tensor:
    """A tensor sharded as `whole` is, whose local part is `part`. Does not communicate."""
    from torch.distributed.tensor import DTensor

    mesh, placements = whole.device_mesh, whole.placements  # type: ignore[attr-defined]
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )  # fmt: skip


def num_copies(tensor: Tensor, world: int) -> float:
    """On how many of `world` ranks each element lives: all for a plain tensor, fewer for one that is sharded."""
    if not is_sharded(tensor):
        return float(world)
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    parts = 1
    for dim, placement in enumerate(placements):
        parts *= mesh.size(dim) if placement.is_shard() else 1
    return world / parts


def gradients_before_reduction(model: torch.nn.Module, parameters: list[Tensor]) -> list[Tensor] | None:
    """The gradients of a backward that ran without reducing them; None where they cannot be seen.

    For DDP they are in `.grad`. FSDP2 keeps them with its own unsharded parameters, which torch has no public name for.
    """
    if not any(is_sharded(parameter) for parameter in parameters):
        return [parameter.grad for parameter in parameters if parameter.grad is not None]
    found: list[Tensor] = []
    try:
        for module in model.modules():
            if not hasattr(module, "set_requires_gradient_sync"):
                continue
            groups = module._get_fsdp_state()._fsdp_param_group  # type: ignore[operator]
            for held in groups.fsdp_params if groups is not None else ():
                gradient = held.unsharded_accumulated_grad
                if gradient is None and hasattr(held, "_unsharded_param"):
                    gradient = held._unsharded_param.grad
                if gradient is not None:
                    found.append(gradient)
    except AttributeError:
        return None
    return found
