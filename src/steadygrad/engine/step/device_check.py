"""Sealing a step on the device, before its update: the flag, what clips the gradients, and the copy to the host.

The same few kernels every step, on numbers in the same places. On a GPU they are recorded once as a CUDA graph and
played with one call from then on: on a small model it is the launching that costs, and played or launched one by one
they are the same kernels with the same bits. Where recording does not work they are launched one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...detect.gradient_norms import ClipRule
from ...detect.history import RefusalLimits
from ...detect.refusal_rule import bounds
from .step_row import Row

_RECORD_AFTER = 3  # runs of the very same work; by then every kernel in it has been loaded
_MOST_RECORDINGS = 8


@dataclass(slots=True)
class RowTransfer:
    """A row on its way to the host. `event` says when it has arrived; None if it is there."""

    host: Tensor
    event: Any

    def values(self) -> list[float]:
        """The row, the flag behind it; waits for its copy, not for the device's later work."""
        if self.event is not None:
            self.event.synchronize()
        values: list[float] = self.host.tolist()
        return values


@dataclass(slots=True)
class CheckedRow:
    """A step sealed: the device flag (float32, exactly 1.0 if the update must be refused, else exactly 0.0), what the
    gradients are clipped with if that was asked for and known here, and the row's seat."""

    flag: Tensor
    factor: Tensor | None
    row_transfer: RowTransfer


class DeviceCheck:
    """Seals rows. One per guard; one step is in flight at a time, so its seat is read before the next is sealed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Any, _CheckInPlace] = {}

    @torch.no_grad()
    def seal(
        self, row: Row, limits: RefusalLimits, *, refuses: bool, rule: ClipRule | None, also: Tensor | None = None
    ) -> CheckedRow:
        """Work out the flag and the clip factor of a row and start its copy to the host. Does not sync.

        With `refuses` False the flag stays 0, whatever the numbers. `also` is a flag on the device that refuses too.
        """
        if not row.stays:
            return _CheckInPlace(row, self._device, refuses, rule, also).run(limits)
        key = (row.layout, refuses, rule, None if also is None else also.data_ptr())
        seal = self._kept.get(key)
        if seal is None or seal.row is not row:
            seal = self._kept[key] = _CheckInPlace(row, self._device, refuses, rule, also)
            seal.may_record = len(self._kept) <= _MOST_RECORDINGS
        return seal.run(limits)


class _CheckInPlace:
    """The work for rows in one place."""

    def __init__(
        self, row: Row, device: torch.device, refuses: bool, rule: ClipRule | None, also: Tensor | None
    ) -> None:
        self.row, self.may_record, self._also = row, False, also
        self._device, self._refuses = device, refuses
        values = row.values
        # Clipping is to have the bits of torch's own, so its arithmetic is in the dtype of the total: see ClipRule.
        self._rule = rule if row.plain_total else None
        first = len(row.layout.names)
        self._total, self._scalars = values[first], row.scalars
        self._place = values[-1]
        self._flag = self._place if values.dtype is torch.float32 else None
        self._bounds = torch.empty((2, self._scalars.numel()), dtype=values.dtype, device=device)
        self._lower, self._upper = self._bounds.unbind()
        self._limits: RefusalLimits | None = None
        on_gpu = device.type == "cuda"
        self._row_transfer = RowTransfer(
            torch.empty(values.shape, dtype=values.dtype, pin_memory=True) if on_gpu else values, None
        )
        if on_gpu:
            self._row_transfer.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._factor: Tensor | None = None
        self._graph: Any = None
        self._recorded_factor: Tensor | None = None
        self._runs = 0

    def run(self, limits: RefusalLimits) -> CheckedRow:
        if limits != self._limits:
            self._send_limits(limits)
        if self._graph is not None and torch.cuda.current_device() == self._device.index:
            self._graph.replay()
            self._factor = self._recorded_factor
        else:
            self._work()
            self._runs += 1
            if self.may_record and self._runs == _RECORD_AFTER:
                self._record()
        if self._row_transfer.event is not None:
            self._row_transfer.event.record(torch.cuda.current_stream(self._device))
        flag = self._flag if self._flag is not None else self._place.float()
        return CheckedRow(flag, self._factor, self._row_transfer)

    def _work(self) -> None:
        """What is good is what clamping leaves as it is, because a NaN differs from itself."""
        if self._refuses:
            clamped = torch.clamp(self._scalars, self._lower, self._upper)
            bad = torch.ne(clamped, self._scalars, out=torch.empty_like(self._scalars))
            torch.amax(bad, 0, out=self._place)
            if self._also is not None:
                torch.maximum(self._place, self._also.to(self._place.dtype), out=self._place)
        if self._rule is not None:
            self._factor = self._rule.factor(self._total)
        if self._row_transfer.event is not None:
            self._row_transfer.host.copy_(self.row.values, non_blocking=True)

    def _record(self) -> None:
        """Record the work as a graph. Runs nothing: what is under way keeps the factor it has."""
        factor = self._factor
        graph: Any = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(aside):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._work()
                finally:
                    graph.capture_end()
            self._graph, self._recorded_factor = graph, self._factor
        except RuntimeError:
            self.may_record = False
        self._factor = factor

    def _send_limits(self, limits: RefusalLimits) -> None:
        """The least and the most each scalar may be, sent when a limit has moved."""
        layout, largest = self.row.layout, torch.finfo(self._bounds.dtype).max
        most = bounds(layout.term_names, layout.num_micro, limits, largest)
        host = torch.tensor(most, dtype=self._bounds.dtype, pin_memory=self._device.type == "cuda")
        self._bounds.copy_(host, non_blocking=True)
        self._limits = limits
