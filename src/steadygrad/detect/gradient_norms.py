"""The gradient probe: every tensor's norm from one multi-tensor pass, and torch's own clip arithmetic on top.

Measures and never judges. Nothing here waits for the device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..records import Reading
from .tensors.sharded_tensors import is_sharded, local_of
from .tensors.torch_private import group_by_device_and_dtype

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_grad, _version = operator.attrgetter("grad"), operator.attrgetter("_version")


@dataclass(slots=True)
class Gradients:
    """One step's gradients: the tensors that have one, their norms (1-d, at least float32) and the total.

    `total` is what `clip_grad_norm_` would compute, to the bit, in its dtype. `norms` is wider for half-precision
    gradients, so a total that overflowed in float16 can be told from a gradient that did. `alike` says that all are
    of one dtype on one device. Of sharded gradients `tensors` are the local parts; norms and total are of the whole.
    """

    indices: tuple[int, ...]
    tensors: list[Tensor]
    norms: Tensor
    total: Tensor
    alike: bool
    clipped: tuple[int, ...] = ()
    """The tensors' versions after they were clipped by us, if they were: while these hold, `total` says all of them."""
    total_on_host: float | None = None
    """The total, where the host has read it."""
    measured: Any = None
    """An event of a GPU after the norms and before they were clipped: the host can be told them from there on."""

    def are_still_those_of(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these are the gradients of all these parameters, clipped by us and not written to since."""
        if len(self.clipped) != len(parameters) or len(self.tensors) != len(parameters):
            return False
        same = all(map(operator.is_, map(_grad, parameters), self.tensors))
        return same and self.clipped == self.versions()

    def read_as(self, total: float) -> tuple[int, ...]:
        """The host has read this total: then it knows whether it must clip. Which parameters have a gradient."""
        self.total_on_host = total
        return self.indices

    def versions(self) -> tuple[int, ...]:
        """How often each of them has been written to. Walks the list without a Python call for each."""
        return tuple(map(_version, self.tensors))


class GradientProbe:
    """Measures the gradients of a fixed list of parameters. Walks the list once a step."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.reduces = True
        """Whether norms of sharded gradients are made those of the whole here; else they are of the local parts."""
        self.watch(parameters)

    def watch(self, parameters: Sequence[Tensor]) -> None:
        """From now on these are the parameters to measure."""
        self._parameters = list(parameters)
        self._all = tuple(range(len(self._parameters)))
        first = self._parameters[0]
        self._alike = all(p.dtype is first.dtype and p.device == first.device for p in self._parameters)
        self._sparse = False
        self.sharded = any(is_sharded(p) for p in self._parameters)

    def forget(self) -> None:
        """Keep no parameter alive. Nothing can be measured afterwards."""
        self._parameters = []

    def measure(self) -> Gradients | None:
        """Norms of all present gradients; None when no parameter has one. Allocates a few numbers, does not sync.

        Communicates only where gradients are sharded: the one small all_reduce that `clip_grad_norm_` needs too.
        """
        found = list(map(_grad, self._parameters))
        grads = [grad for grad in found if grad is not None]
        if not grads:
            return None
        indices = self._all
        if len(grads) != len(found):
            indices = tuple(i for i, grad in enumerate(found) if grad is not None)
        if self.sharded:
            return _measure_sharded(indices, grads) if self.reduces else _measure_parts(indices, grads)
        if not self._sparse:
            try:
                return _measure_alike(indices, grads) if self._alike else _measure_groups(indices, grads)
            except (NotImplementedError, RuntimeError):
                # The multi-tensor kernel does not take sparse gradients; is that what this was?
                if not any(grad.is_sparse for grad in grads):
                    raise
                self._sparse = True
        # Of a sparse gradient the norm is that of the sums of its rows. It is left as it is, since an optimizer may add
        # row by row, which rounds differently; `tensors` has the values in it, so that scaling those scales it.
        sums = [grad.coalesce()._values() if grad.is_sparse else grad for grad in grads]
        measured = _measure_alike(indices, sums) if self._alike else _measure_groups(indices, sums)
        return replace(measured, tensors=[grad._values() if grad.is_sparse else grad for grad in grads])


def _measure_alike(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    """One device and dtype. Not under `no_grad`, which costs as much: gradients rarely have a graph."""
    dtype = grads[0].dtype
    if dtype in _LOW_PRECISION:
        # The kernel accumulates in float32 and casts at the end: ask for float32 and cast ourselves, same bits.
        norms = torch.stack(torch._foreach_norm(grads, 2.0, dtype=torch.float32))
        total = torch.linalg.vector_norm(norms.to(dtype), 2.0)
    else:
        norms = torch.stack(torch._foreach_norm(grads, 2.0))
        total = torch.linalg.vector_norm(norms, 2.0)
    if norms.requires_grad:
        norms, total = norms.detach(), total.detach()
    return Gradients(indices, grads, norms, total, True)


@torch.no_grad()
def _measure_groups(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    """Several devices or dtypes: torch's grouping decides the order of summation, so follow it."""
    first_device = grads[0].device
    place: dict[int, Tensor] = {}
    in_torch_order: list[Tensor] = []
    position = {id(grad): i for i, grad in enumerate(grads)}
    for (_, dtype), ((group,), _) in group_by_device_and_dtype([grads]).items():  # type: ignore[list-item]
        tensors = [t for t in group if t is not None]
        wide = torch.float32 if dtype in _LOW_PRECISION else dtype
        for grad, norm in zip(tensors, torch._foreach_norm(tensors, 2.0, dtype=wide), strict=True):
            place[position[id(grad)]] = norm.to(first_device)
            in_torch_order.append(norm.to(dtype).to(first_device))
    norms = torch.stack([place[i] for i in range(len(grads))])
    total = torch.linalg.vector_norm(torch.stack(in_torch_order), 2.0)
    return Gradients(indices, grads, norms, total, False)


@torch.no_grad()
def _measure_sharded(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    """DTensors: every rank measures its part, and one all_reduce over the mesh makes norms of the whole of them."""
    parts = [i for i, grad in enumerate(grads) if is_sharded(grad)]
    whole = torch.stack(torch._foreach_norm([grads[i] for i in parts], 2.0)).full_tensor()  # type: ignore[attr-defined]
    if len(parts) < len(grads):
        own = iter(whole.unbind())
        norms = [next(own) if is_sharded(grad) else torch.linalg.vector_norm(grad, 2.0) for grad in grads]
        whole = torch.stack([norm.to(whole) for norm in norms])
    tensors = [local_of(grad) for grad in grads]
    alike = all(t.dtype is tensors[0].dtype and t.device == tensors[0].device for t in tensors)
    return Gradients(indices, tensors, whole, torch.linalg.vector_norm(whole, 2.0), alike)


@torch.no_grad()
def _measure_parts(indices: tuple[int, ...], grads: list[Tensor]) -> Gradients:
    """Norms of what lives here, for someone who adds them up over the ranks along with what he reduces anyway."""
    parts = [local_of(grad) for grad in grads]
    return _measure_groups(indices, parts)


@dataclass(frozen=True, slots=True)
class ClipRule:
    """How gradients are clipped: to which norm, and whether inside the fused optimizer."""

    max_norm: float
    folded: bool = False

    def leaves(self, total: float | None) -> bool:
        """Whether gradients of this total norm are certain to stay as they are, in any precision: the factor is 1."""
        return total is not None and total + 1e-6 <= 0.9 * self.max_norm

    def factor(self, total: Tensor) -> Tensor:
        """What gradients of this total norm are multiplied with, by the arithmetic of
        `torch.nn.utils.clip_grad_norm_`, to the bit; or for a folded one what the optimizer must divide them by (its
        `grad_scale`). Does not sync."""
        if self.folded:
            return torch.clamp((total.float() + 1e-6) / self.max_norm, min=1.0)
        return torch.clamp(self.max_norm / (total + 1e-6), max=1.0)


def clip_exact(gradients: Gradients, max_norm: float, factor: Tensor | None = None) -> None:
    """Scale gradients in place as `torch.nn.utils.clip_grad_norm_` does, to the bit. Does not sync.

    `factor` is that of the rule for this norm, if someone has worked it out already.
    """
    rule = ClipRule(max_norm)
    if rule.leaves(gradients.total_on_host):
        return
    with torch.no_grad():
        factor = rule.factor(gradients.total) if factor is None else factor
        if gradients.alike:
            torch._foreach_mul_(gradients.tensors, factor)
            return
        groups = group_by_device_and_dtype([gradients.tensors])  # type: ignore[list-item]
        for (device, _), ((group,), _) in groups.items():
            torch._foreach_mul_([t for t in group if t is not None], factor.to(device))


def finite_gradients(gradients: Gradients) -> bool:
    """Whether every gradient element is finite, whatever its norm says. Reads the device: for the rare path only."""
    return all(bool(torch.isfinite(t).all()) for t in gradients.tensors)


LARGE = 1e18
"""The square of such a gradient may be more than float32 holds: what an update makes of it has to be looked at."""


def look_at_infinite_norm(
    reading: Reading, gradients: Gradients | None, factor: Callable[[], float] = lambda: 1.0, *, clips: bool
) -> Reading:
    """A norm that is infinite proves nothing of the gradients, as their squares may overflow: with finite gradients the
    reading has its norms in double precision, times `factor`. Where they are clipped by it, it stays: dividing by it
    makes every gradient zero. Reads the device where the norm is infinite."""
    if reading.grad_norm != math.inf or gradients is None:
        return reading
    reading = replace(reading, gradients_finite=finite_gradients(gradients))
    if clips or gradients.clipped or not reading.gradients_finite:
        return reading
    norms = [factor() * _wide_norm(tensor) for tensor in gradients.tensors]
    return replace(reading, grad_norm=math.hypot(*norms), norms=norms)


def _wide_norm(tensor: Tensor) -> float:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor, 2.0, dtype=wide))
