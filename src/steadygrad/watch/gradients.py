"""The gradient probe: every tensor's norm from one multi-tensor pass, and torch's own clip arithmetic on top.

Measures and never judges. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

_LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Gradients:
    """One step's gradients: the tensors that have one, their norms (1-d, at least float32) and the total.

    `total` is what `clip_grad_norm_` would compute, to the bit, in its dtype. `norms` is wider for half-precision
    gradients, so a total that overflowed in float16 can be told from a gradient that did.
    """

    indices: tuple[int, ...]
    tensors: list[Tensor]
    norms: Tensor
    total: Tensor


def measure_gradients(parameters: Sequence[Tensor]) -> Gradients | None:
    """Norms of all present gradients; None when no parameter has one. Allocates a few numbers, does not sync."""
    indices = tuple(i for i, p in enumerate(parameters) if p.grad is not None)
    grads = [_dense(parameters[i].grad) for i in indices]
    if not grads:
        return None
    first = grads[0]
    if all(g.dtype is first.dtype and g.device == first.device for g in grads):
        return _measure_one_group(indices, grads)
    return _measure_groups(indices, grads)


def _dense(grad: Tensor | None) -> Tensor:
    assert grad is not None
    if grad.is_sparse:
        # Norm and scaling of a sparse gradient are those of its coalesced values.
        if not grad.is_coalesced():
            raise SparseGradientNotCoalesced
        return grad._values()
    return grad


class SparseGradientNotCoalesced(Exception):
    """Internal: the caller coalesces `.grad` in place and measures again."""


def coalesce_sparse(parameters: Sequence[Tensor]) -> None:
    """Make every sparse gradient unique by index, in place, as optimizers do anyway."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()


@torch.no_grad()
def _measure_one_group(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    dtype = grads[0].dtype
    if dtype in _LOW_PRECISION:
        # The kernel accumulates in float32 and casts at the end: ask for float32 and cast ourselves, same bits.
        norms = torch.stack(torch._foreach_norm(grads, 2.0, dtype=torch.float32))
        total = torch.linalg.vector_norm(norms.to(dtype), 2.0)
    else:
        norms = torch.stack(torch._foreach_norm(grads, 2.0))
        total = torch.linalg.vector_norm(norms, 2.0)
    return Gradients(indices, grads, norms, total)


@torch.no_grad()
def _measure_groups(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    """Several devices or dtypes: torch's grouping decides the order of summation, so follow it."""
    first_device = grads[0].device
    place: dict[int, Tensor] = {}
    in_torch_order: list[Tensor] = []
    position = {id(grad): i for i, grad in enumerate(grads)}
    for (_, dtype), ((group,), _) in _group_tensors_by_device_and_dtype([grads]).items():  # type: ignore[list-item]
        tensors = [t for t in group if t is not None]
        wide = torch.float32 if dtype in _LOW_PRECISION else dtype
        for grad, norm in zip(tensors, torch._foreach_norm(tensors, 2.0, dtype=wide), strict=True):
            place[position[id(grad)]] = norm.to(first_device)
            in_torch_order.append(norm.to(dtype).to(first_device))
    norms = torch.stack([place[i] for i in range(len(grads))])
    return Gradients(indices, grads, norms, torch.linalg.vector_norm(torch.stack(in_torch_order), 2.0))


@torch.no_grad()
def clip_exact(gradients: Gradients, max_norm: float) -> None:
    """Scale gradients in place with the arithmetic of `torch.nn.utils.clip_grad_norm_`, to the bit. Does not sync."""
    coefficient = torch.clamp(max_norm / (gradients.total + 1e-6), max=1.0)
    first = gradients.tensors[0]
    if all(t.dtype is first.dtype and t.device == first.device for t in gradients.tensors):
        torch._foreach_mul_(gradients.tensors, coefficient)
        return
    for (device, _), ((group,), _) in _group_tensors_by_device_and_dtype([gradients.tensors]).items():  # type: ignore[list-item]
        torch._foreach_mul_([t for t in group if t is not None], coefficient.to(device))


def fold_divisor(total: Tensor, max_norm: float) -> Tensor:
    """What a fused optimizer must divide gradients by to clip them (its `grad_scale`). Does not sync."""
    return torch.clamp((total.float() + 1e-6) / max_norm, min=1.0)


def finite_gradients(gradients: Gradients) -> bool:
    """Whether every gradient element is finite, whatever its norm says. Reads the device: for the rare path only."""
    return all(bool(torch.isfinite(t).all()) for t in gradients.tensors)
