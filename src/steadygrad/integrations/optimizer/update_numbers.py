"""The numbers of one optimizer's update, read before it on the host or behind it while the device decides."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.gradient_norms import GradientProbe, Gradients, look_at_infinite_norm
from ...detect.history import RefusalLimits
from ...engine.record.run_log import RunLog
from ...engine.step.device_check import DeviceCheck, RowTransfer
from ...engine.step.device_gate import DeviceGate, why_not_on_device
from ...engine.step.step_row import Layout, RowReader, reading_of
from ...engine.step.update import current_rate
from ...records import Reading

_AFTER_CLIPPING = "norm after clipping"
ON_DEVICE = ("cuda",)
"""Where a host read is worth hiding behind the update. Reading a CPU tensor costs nothing."""


@dataclass(slots=True)
class PendingNumbers:
    """A step's numbers on their way to the host, while its update runs under a device flag."""

    row_transfer: RowTransfer
    layout: Layout
    limits: RefusalLimits
    clipped: Gradients | None


class UpdateNumbers:
    """Measures an optimizer's gradients and reads them, with its own history for the limits."""

    def __init__(
        self, optimizer: weakref.ref[Optimizer], parameters: Sequence[Tensor], names: Sequence[str], log: RunLog
    ) -> None:
        self._optimizer, self._log, self.parameters = optimizer, log, list(parameters)
        self._readout = RowReader(names, self.parameters[0].device)
        self._probe = GradientProbe(self.parameters)
        self._device_check = DeviceCheck(self.parameters[0].device)
        self._gate = DeviceGate([self.optimizer])
        self._no_loss = torch.zeros((), device=self.parameters[0].device)
        self._stream: Any = None

    @property
    def optimizer(self) -> Optimizer:
        found = self._optimizer()
        assert found is not None, "the optimizer of this step is gone"
        return found

    @property
    def on_device(self) -> bool:
        """Whether the weights are where an update can be refused by the device."""
        return self.parameters[0].device.type in ON_DEVICE

    def follow(self, parameters: Sequence[Tensor], names: Sequence[str]) -> None:
        """The optimizer has other parameters from now on."""
        self.parameters = list(parameters)
        self._probe.watch(parameters)
        self._readout.rename(names)

    def forget(self) -> None:
        """The optimizer is gone: keep none of its tensors."""
        self.parameters = []
        self._probe.forget()

    def release(self) -> None:
        """Leave no hook on the optimizer."""
        self._gate.release()

    def disarm(self) -> None:
        """No flag is in force any more."""
        self._gate.disarm()

    def refuses_on_device(self) -> bool:
        """Whether the coming update can be made under a flag on the device. A GradScaler brings its own flag."""
        self._gate.disarm()  # a step that raised left it so
        optimizer = self.optimizer
        if getattr(optimizer, "found_inf", None) is not None:
            return False
        return why_not_on_device(optimizer) is None

    def seal(self, loss: Tensor | None, clipped: Gradients | None = None) -> PendingNumbers | None:
        """Let the device refuse the coming update by the same numbers that `read` reads; `open` the letter after it.
        Does not sync. None if there is no gradient."""
        gradients, clipped = self._measured(clipped)
        if gradients is None:
            return None
        terms = {"loss": loss if loss is not None else self._no_loss}
        if clipped is not None:
            # The norm from before clipping is the one to judge; what the optimizer is about to use must be finite too.
            terms[_AFTER_CLIPPING] = gradients.total
            gradients = replace(gradients, total=clipped.total.to(gradients.total))
        limits = self._log.limits(None)
        with self._beside(gradients.measured if clipped is None else None):
            row = self._readout.pack(gradients, [terms], None, in_place=True)
            sealed = self._device_check.seal(row, limits, refuses=True, rule=None)
        self._gate.arm(sealed.flag)
        return PendingNumbers(sealed.row_transfer, row.layout, limits, clipped)

    @contextmanager
    def _beside(self, measured: Any) -> Iterator[None]:
        """Inside, work of the device waits for the event after the measurement only, and what comes after waits for it.

        So the host has the numbers while gradients are still being clipped, and is ahead of the device by that much.
        What is allocated inside is not used again before the device has passed the next such event.
        """
        if measured is None:
            yield
            return
        device = self.parameters[0].device
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_event(measured)
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(device).wait_stream(self._stream)

    def _measured(self, clipped: Gradients | None) -> tuple[Gradients | None, Gradients | None]:
        """The gradients' norms. What was measured for clipping holds as long as nothing was written since."""
        if clipped is not None and clipped.are_still_those_of(self.parameters):
            return clipped, None
        return self._probe.measure(), clipped

    def open(self, pending_numbers: PendingNumbers, step: int) -> Reading:
        """The numbers of a sealed step, after its update; `refused` is the device's own decision. One host read,
        behind which the device goes on with the update."""
        fresh = self._gate.take_fresh()
        values = pending_numbers.row_transfer.values()
        refused = values[-1] != 0.0
        if refused:
            self._gate.forget_fresh(fresh)
        reading = reading_of(
            values,
            pending_numbers.layout,
            step=step,
            lr=current_rate(self.optimizer),
            batch_key=None,
            limits=pending_numbers.limits,
            refused=refused,
        )
        if pending_numbers.clipped is None:
            return reading
        before, after = reading.grad_norm, reading.terms[_AFTER_CLIPPING]
        return _before_clipping(replace(reading, terms={}, grad_norm=after), before, pending_numbers.clipped)

    def read(
        self, step: int, loss: Tensor | None, clipped: Gradients | None = None, *, can_undo: bool = False
    ) -> Reading:
        """The gradients' numbers on the host, unscaled. One host read. A norm that overflowed is looked into where
        the update can be undone.

        `clipped` are the gradients as they were before the loop clipped them: theirs is the norm that is reported,
        while those that the optimizer is about to use are the ones that are looked at.
        """
        optimizer = self.optimizer
        scale = getattr(optimizer, "grad_scale", None)
        gradients, clipped = self._measured(clipped) if scale is None else (self._probe.measure(), clipped)
        row = self._readout.pack(gradients, [{"loss": loss if loss is not None else self._no_loss}], scale)
        if clipped is not None:
            row.parts.append(clipped.total.to(row.total.device))
        values = row.read()
        before_clip = values.pop() if clipped is not None else None
        limits = self._log.limits(None)
        reading = reading_of(values, row.layout, step=step, lr=current_rate(optimizer), batch_key=None, limits=limits)
        factor = 1.0 / reading.loss_scale if scale is not None and reading.loss_scale else 1.0
        if factor != 1.0:
            reading = replace(
                reading, grad_norm=reading.grad_norm * factor, norms=[norm * factor for norm in reading.norms]
            )
        clips = before_clip is not None and not math.isfinite(before_clip)
        stays = clips or self._probe.sharded or not can_undo
        if reading.grad_norm == math.inf:
            reading = look_at_infinite_norm(reading, gradients, lambda: factor, clips=stays)
        return reading if before_clip is None else _before_clipping(reading, before_clip, clipped)


def _before_clipping(reading: Reading, total: float, clipped: Gradients | None) -> Reading:
    """The reading with the norms from before clipping. A bad norm turned every gradient bad, so then they are read
    one by one, to name the one that was bad first."""
    if math.isfinite(total) and math.isfinite(reading.grad_norm) and reading.grad_norm > 0:
        factor = total / reading.grad_norm
        return replace(reading, grad_norm=total, norms=[norm * factor for norm in reading.norms])
    if clipped is not None and not math.isfinite(total) and len(clipped.indices) == len(reading.norms):
        return replace(reading, grad_norm=total, norms=clipped.norms.tolist())
    return replace(reading, grad_norm=total) if not math.isfinite(total) else reading
