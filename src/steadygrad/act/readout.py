"""From device numbers to host numbers: one row a step, copied once, read one step late where that is free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..records import Reading
from ..watch.gradients import Gradients
from ..watch.history import Limits
from .program import Terms

LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands where in a row: the gradient norms, then total, then every micro-batch's terms, then the scale."""

    names: tuple[str, ...]
    term_names: tuple[str, ...]
    num_micro: int
    scaled: bool


@dataclass(slots=True)
class Row:
    """One step's numbers, still on the device: `scalars` are the total norm and every micro-batch's terms."""

    norms: Tensor | None
    scalars: Tensor
    scale: Tensor | None
    layout: Layout

    def joined(self, flag: Tensor | None = None) -> Tensor:
        """All of it as one vector, in the order of the layout, the flag last."""
        dtype = self.scalars.dtype
        parts = [self.scalars] if self.norms is None else [self.norms.to(dtype), self.scalars]
        if self.scale is not None:
            parts.append(self.scale.to(dtype).reshape(1))
        if flag is not None:
            parts.append(flag.to(dtype).reshape(1))
        return torch.cat(parts) if len(parts) > 1 else self.scalars


@dataclass(slots=True)
class _Seat:
    """A pinned place for one row on its way to the host."""

    host: Tensor
    event: Any


class Readout:
    """Packs rows and brings them to the host."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._device = device
        self._layouts: dict[Any, Layout] = {}
        self._limits_key: Any = None
        self._limits = torch.empty(0)
        self._zero = torch.zeros((), device=device)
        self._seats: list[_Seat] = []
        self._turn = 0

    @torch.no_grad()
    def pack(self, gradients: Gradients | None, micros: Sequence[Terms], scale: Tensor | None) -> Row:
        """One device vector of everything the host wants to know of this step. Does not sync."""
        term_names = tuple(micros[0])
        indices = gradients.indices if gradients is not None else ()
        key = (indices, term_names, len(micros), scale is not None)
        layout = self._layouts.get(key)
        if layout is None:
            names = tuple(self._names[i] for i in indices)
            layout = self._layouts[key] = Layout(names, term_names, len(micros), scale is not None)
        total = gradients.total if gradients is not None else self._zero
        scalars = [total] + [terms[name] for terms in micros for name in term_names if name in terms]
        if any(s.device != self._device for s in scalars):
            scalars = [s.to(self._device, non_blocking=True) for s in scalars]
        if any(s.dtype is not torch.float32 for s in scalars):
            wide = torch.float64 if any(s.dtype is torch.float64 for s in scalars) else torch.float32
            scalars = [s.to(wide) for s in scalars]
        norms = None if gradients is None else gradients.norms
        return Row(norms, torch.stack(scalars), scale, layout)

    @torch.no_grad()
    def flag(self, row: Row, *, norm_limit: float, loss_limit: float) -> Tensor:
        """float32 scalar on the device: exactly 1.0 if the update must be refused, else exactly 0.0. Does not sync.

        The comparison asks for what is good, because a NaN fails every comparison.
        """
        upper = self._limits_on_device(row, norm_limit, loss_limit)
        good = ((row.scalars <= upper) & (row.scalars >= -LARGEST)).all()
        return torch.logical_not(good, out=torch.empty((), dtype=torch.float32, device=self._device))

    def _limits_on_device(self, row: Row, norm_limit: float, loss_limit: float) -> Tensor:
        """What each scalar is compared with. Sent only when a limit has moved."""
        key = (row.layout, norm_limit, loss_limit)
        if self._limits_key != key:
            width = len(row.layout.term_names)
            place = row.layout.term_names.index("loss")
            values = [min(norm_limit, LARGEST)] + [LARGEST] * (width * row.layout.num_micro)
            for micro in range(row.layout.num_micro):
                values[1 + micro * width + place] = min(loss_limit, LARGEST)
            host = torch.tensor(values, dtype=row.scalars.dtype, pin_memory=self._device.type == "cuda")
            self._limits, self._limits_key = host.to(self._device, non_blocking=True), key
        return self._limits

    def send(self, row: Row, flag: Tensor) -> _Seat:
        """Start the copy to the host. On a GPU it is asynchronous; two seats take turns."""
        values = row.joined(flag)
        if self._device.type != "cuda":
            return _Seat(values, None)
        self._turn ^= 1
        while len(self._seats) < 2:
            self._seats.append(_Seat(torch.empty(0, pin_memory=True), torch.cuda.Event()))  # type: ignore[no-untyped-call]
        seat = self._seats[self._turn]
        if seat.host.numel() != values.numel() or seat.host.dtype is not values.dtype:
            seat.host = torch.empty(values.numel(), dtype=values.dtype, pin_memory=True)
        seat.host.copy_(values, non_blocking=True)
        seat.event.record()
        return seat

    def receive(self, seat: _Seat) -> list[float]:
        """The row on the host; waits for its copy, not for the device's later work."""
        if seat.event is not None:
            seat.event.synchronize()
        values: list[float] = seat.host.tolist()
        return values


def must_refuse(reading: Reading) -> bool:
    """The device flag's rule on the host, over the same numbers: both speeds refuse exactly the same steps."""
    numbers = (reading.grad_norm, reading.loss, *reading.terms.values(), *reading.micro_losses)
    if not all(abs(number) <= LARGEST for number in numbers):
        return True
    losses = reading.micro_losses or (reading.loss,)
    norm_limit = math.inf if reading.grad_norm_limit is None else reading.grad_norm_limit
    loss_limit = math.inf if reading.loss_limit is None else reading.loss_limit
    return reading.grad_norm > norm_limit or any(loss > loss_limit for loss in losses)


def reading_of(
    values: Sequence[float],
    layout: Layout,
    *,
    step: int,
    lr: float,
    batch_key: str | None,
    limits: Limits,
    refused: bool = False,
) -> Reading:
    """Host numbers as a Reading. `values` is a row, with or without the flag behind it."""
    n = len(layout.names)
    width = len(layout.term_names)
    total = values[n]
    if width == 1 and layout.num_micro == 1:  # the usual case, a little faster
        return Reading(
            step=step,
            loss=values[n + 1],
            grad_norm=total,
            norms=values[:n],
            names=layout.names,
            lr=lr,
            loss_scale=values[n + 2] if layout.scaled else None,
            batch_key=batch_key,
            refused=refused,
            grad_norm_limit=limits.grad_norm,
            loss_limit=limits.loss,
        )
    micro = [values[n + 1 + i * width : n + 1 + (i + 1) * width] for i in range(layout.num_micro)]
    position = n + 1 + layout.num_micro * width
    scale = values[position] if layout.scaled else None
    means = {name: sum(m[j] for m in micro) / layout.num_micro for j, name in enumerate(layout.term_names)}
    loss = means.pop("loss")
    losses = [m[layout.term_names.index("loss")] for m in micro]
    return Reading(
        step=step,
        loss=loss,
        terms=means,
        grad_norm=total,
        norms=values[:n],
        names=layout.names,
        lr=lr,
        loss_scale=scale,
        micro_losses=losses if layout.num_micro > 1 else (),
        batch_key=batch_key,
        refused=refused,
        grad_norm_limit=limits.grad_norm,
        loss_limit=limits.loss,
    )
