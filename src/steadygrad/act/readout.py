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
    """One step's numbers, still on the device, in the order of the layout. The last place is the flag's, 0 so far."""

    values: Tensor
    layout: Layout

    @property
    def scalars(self) -> Tensor:
        """What is judged: the total norm and every micro-batch's terms."""
        first = len(self.layout.names)
        return self.values[first : first + 1 + len(self.layout.term_names) * self.layout.num_micro]

    def numbers(self) -> Tensor:
        """All of it but the flag."""
        return self.values[:-1]


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
        self._limits = (torch.empty(0), torch.empty(0))
        self.never = torch.zeros((), device=device)
        """The flag of a step that is not to be refused, whatever its numbers."""
        self._no_flag = torch.zeros(1, device=device)
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
        total = gradients.total if gradients is not None else self.never
        scalars = [total] + [terms[name] for terms in micros for name in term_names if name in terms]
        if scale is not None:
            scalars.append(scale)
        if any(s.device != self._device for s in scalars):
            scalars = [s.to(self._device, non_blocking=True) for s in scalars]
        parts = [s.reshape(1) for s in scalars]
        parts.append(self._no_flag)
        if gradients is not None:
            parts.insert(0, gradients.norms)
        if any(part.dtype is not torch.float32 for part in parts):
            wide = torch.float64 if any(part.dtype is torch.float64 for part in parts) else torch.float32
            parts = [part.to(wide) for part in parts]
        return Row(torch.cat(parts), layout)

    @torch.no_grad()
    def flag(self, row: Row, *, norm_limit: float, loss_limit: float) -> Tensor:
        """float32 scalar on the device: exactly 1.0 if the update must be refused, else exactly 0.0. Does not sync.

        It is the last number of the row from here on. What is good is what clamping leaves as it is, because a NaN
        differs from itself; three kernels, for on a small model launching them is what costs.
        """
        lower, upper = self._limits_on_device(row, norm_limit, loss_limit)
        scalars = row.scalars
        bad = torch.ne(torch.clamp(scalars, lower, upper), scalars, out=torch.empty_like(scalars))
        flag: Tensor = torch.amax(bad, 0, out=row.values[-1])
        return flag.float()

    def _limits_on_device(self, row: Row, norm_limit: float, loss_limit: float) -> tuple[Tensor, Tensor]:
        """The least and the most each scalar may be. Sent only when a limit has moved."""
        key = (row.layout, norm_limit, loss_limit)
        if self._limits_key != key:
            width = len(row.layout.term_names)
            place = row.layout.term_names.index("loss")
            values = [min(norm_limit, LARGEST)] + [LARGEST] * (width * row.layout.num_micro)
            for micro in range(row.layout.num_micro):
                values[1 + micro * width + place] = min(loss_limit, LARGEST)
            bounds = [[-LARGEST] * len(values), values]
            host = torch.tensor(bounds, dtype=row.values.dtype, pin_memory=self._device.type == "cuda")
            lower, upper = host.to(self._device, non_blocking=True).unbind()
            self._limits, self._limits_key = (lower, upper), key
        return self._limits

    def send(self, row: Row) -> _Seat:
        """Start the copy to the host. On a GPU it is asynchronous; two seats take turns."""
        values = row.values
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
