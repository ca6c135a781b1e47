"""What a sampled step did to the parameters, measured on the device.

A slice of every parameter is kept across the update, never the whole: at most `sample` elements each, evenly spread.
Nothing here waits for the device, and nothing is read: that is `readback`. Measures, never judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..tensors.foreign_objects import hasattr


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one parameter, on the host."""

    grad_absmax: float
    weight_norm: float
    update_norm: float
    num_sampled: int
    num_live: int
    num_moved: int


@dataclass(slots=True)
class _Group:
    """Parameters of one device and dtype, whose slices lie one after the other in one tensor."""

    indices: list[int]
    slices: list[Callable[[], Tensor]]
    sizes: list[int]
    before: Tensor
    live: Tensor
    grad_absmax: Tensor
    table: Tensor | None = None


@dataclass(slots=True)
class Measurement:
    """Open from just before an update to just after it."""

    groups: list[_Group] = field(default_factory=list)

    @staticmethod
    @torch.no_grad()
    def begin(parameters: Sequence[Tensor], *, sample: int) -> Measurement:
        """Before the update, with the gradients in place. Allocates a slice of each; does not synchronise."""
        sorted_out: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
        for index, parameter in enumerate(parameters):
            if parameter.grad is None or parameter.grad.is_sparse:
                continue
            weight, gradient = _local(parameter), _local(parameter.grad)
            if weight.numel() and weight.is_floating_point() and weight.stride() == gradient.stride():
                sorted_out.setdefault((weight.device, weight.dtype), []).append((index, parameter))
        return Measurement([_open(entries, sample) for entries in sorted_out.values()])

    @torch.no_grad()
    def end(self) -> None:
        """After the update. Allocates a slice of each and a small table; does not synchronise."""
        for group in self.groups:
            after = torch.cat([take() for take in group.slices])
            moved = ((after != group.before) & group.live).float()
            columns = (
                group.grad_absmax,
                _norms(_at_least_float32(group.before), group.sizes, 2.0),
                _norms(_at_least_float32(after) - _at_least_float32(group.before), group.sizes, 2.0),
                _norms(group.live.float(), group.sizes, 1.0),
                _norms(moved, group.sizes, 1.0),
            )
            group.table = torch.stack([column.float() for column in columns])

    def tables(self) -> list[Tensor]:
        """One row a number, one column a tensor, for each group; on the device."""
        return [group.table for group in self.groups if group.table is not None]

    def rows(self, tables: Sequence[Sequence[float]]) -> dict[int, Measured]:
        """The same as plain numbers by the index of the parameter, from what `tables` came back as, flattened."""
        found = {}
        for group, flat in zip(self.groups, tables, strict=True):
            count = len(group.indices)
            columns = [flat[start : start + count] for start in range(0, len(flat), count)]
            for index, size, *numbers in zip(group.indices, group.sizes, *columns, strict=True):
                absmax, weight, update, live, moved = numbers
                found[index] = Measured(absmax, weight, update, size, _count(live), _count(moved))
        return found


def _count(number: float) -> int:
    return round(number) if math.isfinite(number) else 0


def _local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lives here."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _flat(tensor: Tensor) -> Tensor:
    """All elements in the order they lie in memory, as a view wherever there is one."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    dense = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)) + 1
    if dense == tensor.numel():
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return tensor.reshape(-1)


def _slice(tensor: Tensor, sample: int) -> Tensor:
    return _flat(tensor)[:: max(1, -(-tensor.numel() // sample))]


def _open(entries: list[tuple[int, Tensor]], sample: int) -> _Group:
    def taking(parameter: Tensor) -> Callable[[], Tensor]:
        # Looked up each time: an update may give a parameter a new storage instead of writing into the old one.
        return lambda: _slice(_local(parameter), sample)

    slices = [taking(parameter) for _, parameter in entries]
    before = [take() for take in slices]
    gradients = [_local(parameter.grad) for _, parameter in entries if parameter.grad is not None]
    return _Group(
        indices=[index for index, _ in entries],
        slices=slices,
        sizes=[piece.numel() for piece in before],
        before=torch.cat(before),
        live=torch.cat([_slice(gradient, sample) for gradient in gradients]) != 0,
        grad_absmax=_absmaxes(gradients),
    )


def absmax(tensor: Tensor) -> Tensor:
    """The largest magnitude, NaN if there is one, in float32. One pass, no copy: eight times as fast on a CPU as the
    infinity norm."""
    low, high = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return torch.maximum(-low, high).float()


def _absmaxes(tensors: list[Tensor]) -> Tensor:
    if tensors[0].device.type == "cpu":
        return torch.stack([absmax(tensor) for tensor in tensors])
    # One launch for all of them, where launches are what costs.
    return torch.stack([norm.float() for norm in torch._foreach_norm(tensors, math.inf)])


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _norms(tensor: Tensor, sizes: list[int], order: float) -> Tensor:
    return torch.stack(torch._foreach_norm(torch.split(tensor, sizes), order))
