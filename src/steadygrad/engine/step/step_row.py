"""From device numbers to host numbers: one row a step, copied once, read one step late where that is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.gradient_norms import Gradients
from ...detect.history import RefusalLimits
from ...records import Reading
from .user_step import Terms


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
    plain_total: bool = True
    """Whether the total norm stands here as it was computed, and not widened."""
    stays: bool = False
    """Whether the next row of this layout will be put into the same place."""

    @property
    def scalars(self) -> Tensor:
        """What is judged: the total norm and every micro-batch's terms."""
        first = len(self.layout.names)
        return self.values[first : first + 1 + len(self.layout.term_names) * self.layout.num_micro]

    def numbers(self) -> Tensor:
        """All of it but the flag."""
        return self.values[:-1]


class RowReader:
    """Packs rows."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._device = device
        self._layouts: dict[Any, Layout] = {}
        self._places: dict[Layout, Row] = {}
        self._none = torch.zeros((), device=device)
        self._no_flag = torch.zeros(1, device=device)

    def rename(self, names: Sequence[str]) -> None:
        """The parameters have changed: these are their names from now on."""
        self._names = tuple(names)
        self._layouts.clear()

    def pack(
        self, gradients: Gradients | None, micros: Sequence[Terms], scale: Tensor | None, *, in_place: bool = False
    ) -> Row:
        """One device vector of everything the host wants to know of this step. Does not sync.

        With `in_place`, on a GPU, over the last row of the same layout; the work on that one must be queued already.
        """
        term_names = tuple(micros[0])
        indices = gradients.indices if gradients is not None else ()
        key = (indices, term_names, len(micros), scale is not None)
        layout = self._layouts.get(key)
        if layout is None:
            names = tuple(self._names[i] for i in indices)
            layout = self._layouts[key] = Layout(names, term_names, len(micros), scale is not None)
        total = gradients.total if gradients is not None else self._none
        scalars = [total] + [terms[name].detach() for terms in micros for name in term_names if name in terms]
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
        if in_place and self._device.type == "cuda" and parts[0].dtype is torch.float32:
            return self._in_place(parts, layout, total)
        return Row(torch.cat(parts), layout, total.dtype is parts[0].dtype)

    def _in_place(self, parts: list[Tensor], layout: Layout, total: Tensor) -> Row:
        row = self._places.get(layout)
        if row is None:
            row = self._places[layout] = Row(torch.cat(parts), layout, total.dtype is torch.float32, stays=True)
        else:
            torch.cat(parts, out=row.values)
        return row


def reading_of(
    values: Sequence[float],
    layout: Layout,
    *,
    step: int,
    lr: float,
    batch_key: str | None,
    limits: RefusalLimits,
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
