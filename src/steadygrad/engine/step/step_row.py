"""From device numbers to host numbers: one row a step, copied once, read one step late where that is free."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.gradient_norms import Gradients
from ...detect.history import RefusalLimits
from ...records import Reading
from .user_step import Terms

_dtype = operator.attrgetter("dtype")
_FLOAT32 = {torch.float32}


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands where in a row: the gradient norms, then total, then every micro-batch's terms, then the scale."""

    names: tuple[str, ...]
    term_names: tuple[str, ...]
    num_micro: int
    scaled: bool


@dataclass(slots=True)
class Row:
    """One step's numbers, still on the device, in the order of the layout."""

    parts: list[Tensor]
    """The norms, and each of the other numbers."""
    layout: Layout
    total: Tensor
    no_flag: Tensor
    packed: Tensor | None = None
    stays: bool = False
    """Whether the next row of this layout will be put into the same place."""

    @property
    def values(self) -> Tensor:
        """All of it in one vector. The last place is the flag's, 0 so far. Does not sync."""
        if self.packed is None:
            self.packed = torch.cat(self.in_one_dtype())
        return self.packed

    def in_one_dtype(self) -> list[Tensor]:
        """Vectors of at least float32, the flag's place behind them."""
        parts = [part.reshape(-1) for part in self.parts]
        parts.append(self.no_flag)
        dtypes = set(map(_dtype, parts))
        if dtypes != _FLOAT32:
            wide = torch.float64 if torch.float64 in dtypes else torch.float32
            parts = [part.to(wide) for part in parts]
        return parts

    def read(self) -> list[float]:
        """All of it but the flag. One host read."""
        numbers: list[float] = self.values.tolist()
        numbers.pop()
        return numbers

    @property
    def plain_total(self) -> bool:
        """Whether the total norm stands here as it was computed, and not widened."""
        return self.total.dtype is self.values.dtype

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
        """Everything the host wants to know of this step. Does not sync.

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
        parts = [] if gradients is None else [gradients.norms]
        parts.append(total)
        for terms in micros:
            parts += [terms[name] for name in term_names if name in terms]
        if scale is not None:
            parts.append(scale)
        for place, part in enumerate(parts):
            if part.requires_grad or part.device != self._device:
                parts[place] = part.detach().to(self._device, non_blocking=True)
        if in_place and self._device.type == "cuda":
            return self._in_place(Row(parts, layout, total, self._no_flag))
        return Row(parts, layout, total, self._no_flag)

    def _in_place(self, row: Row) -> Row:
        place, fresh = self._places.get(row.layout), row.in_one_dtype()
        if fresh[0].dtype is not torch.float32:
            return row
        if place is not None:
            torch.cat(fresh, out=place.values)
            return place
        row.packed, row.parts, row.stays = torch.cat(fresh), [], True
        self._places[row.layout] = row
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
    if width == 1 and layout.num_micro == 1:  # the usual case: `Reading(...)`, but fast
        reading = object.__new__(Reading)
        reading.__dict__.update(
            step=step,
            loss=values[n + 1],
            terms={},
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
        return reading
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
