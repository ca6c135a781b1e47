"""One guarded optimizer at a loop's own `step()`: its parameters, what is read of them, its books.

Shared by the integrations that listen at `optimizer.step()`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..detect.gradients import GradientProbe, Gradients
from ..detect.history import Limits
from ..engine import setup
from ..engine.books import Books
from ..engine.gate import DeviceGate, parameters_of, why_not_on_device
from ..engine.learning_rate import current_rate
from ..engine.readout import Layout, Readout, reading_of
from ..engine.seal import Sealer, Seat
from ..engine.shield import Shield
from ..journal import Journal
from ..policy import Policy
from ..records import Reading

_AFTER_CLIPPING = "norm after clipping"
_ON_DEVICE = ("cuda",)
"""Where a host read is worth hiding behind the update. Reading a CPU tensor costs nothing."""


@dataclass(slots=True)
class Letter:
    """A step's numbers on their way to the host, while its update runs under a device flag."""

    seat: Seat
    layout: Layout
    limits: Limits
    clipped: Gradients | None


class Desk:
    """One attached optimizer: its parameters, its readout, its books."""

    def __init__(
        self, optimizer: Optimizer, names: dict[int, str], policy: Policy, journal: Journal, shield: Shield
    ) -> None:
        self.optimizer = optimizer
        self.parameters = parameters_of(optimizer)
        self.books = Books(policy, journal, shield, run=journal.run_id, rank=journal.rank, quiet=journal.rank > 0)
        self.names = [names[id(p)] for p in self.parameters]
        self._readout = Readout(self.names, self.parameters[0].device)
        self._probe = GradientProbe(self.parameters)
        self._rates: list[tuple[dict[str, Any], Any]] = []
        self._sealer = Sealer(self.parameters[0].device)
        self._gate = DeviceGate([optimizer])

    def refuses_on_device(self) -> bool:
        """Whether the coming update can be made under a flag on the device. A GradScaler brings a flag of its own."""
        self._gate.disarm()  # a step that raised left it so
        if self.parameters[0].device.type not in _ON_DEVICE or getattr(self.optimizer, "found_inf", None) is not None:
            return False
        return why_not_on_device(self.optimizer) is None

    def seal(self, loss: Tensor | None, clipped: Gradients | None = None) -> Letter | None:
        """Let the device refuse the coming update by the same numbers that `read` reads; `open` the letter after it.
        Does not sync. None if there is no gradient."""
        gradients = self._probe.measure()
        if gradients is None:
            return None
        terms = {"loss": loss if loss is not None else torch.zeros((), device=self.parameters[0].device)}
        if clipped is not None:
            # The norm from before clipping is the one to judge; what the optimizer is about to use must be finite too.
            terms[_AFTER_CLIPPING] = gradients.total
            gradients = replace(gradients, total=clipped.total.to(gradients.total))
        row = self._readout.pack(gradients, [terms], None, in_place=True)
        limits = self.books.limits(None)
        sealed = self._sealer.seal(row, limits, refuses=True, rule=None)
        self._gate.arm(sealed.flag)
        return Letter(sealed.seat, row.layout, limits, clipped)

    def open(self, letter: Letter, step: int) -> Reading:
        """The numbers of a sealed step, after its update; `refused` is the device's own word. One host read, behind
        which the device goes on with the update."""
        self._gate.disarm()
        fresh = self._gate.take_fresh()
        values = letter.seat.values()
        refused = values[-1] != 0.0
        if refused:
            self._gate.forget_fresh(fresh)
        reading = reading_of(
            values, letter.layout, step=step, lr=current_rate(self.optimizer), batch_key=None, limits=letter.limits,
            refused=refused,
        )  # fmt: skip
        if letter.clipped is None:
            return reading
        before, after = reading.grad_norm, reading.terms[_AFTER_CLIPPING]
        return _before_clipping(replace(reading, terms={}, grad_norm=after), before, letter.clipped)

    def read(self, step: int, loss: Tensor | None, clipped: Gradients | None = None) -> Reading:
        """The gradients' numbers on the host, unscaled. One host read.

        `clipped` are the gradients as they were before the loop clipped them: theirs is the norm that is reported,
        while those that the optimizer is about to use are the ones that are looked at.
        """
        gradients = self._probe.measure()
        scale = getattr(self.optimizer, "grad_scale", None)
        shown = loss if loss is not None else torch.zeros((), device=self.parameters[0].device)
        row = self._readout.pack(gradients, [{"loss": shown}], scale)
        vector = row.numbers()
        if clipped is not None:
            vector = torch.cat([vector, clipped.total.to(vector).reshape(1)])
        values: list[float] = vector.tolist()
        before_clip = values.pop() if clipped is not None else None
        limits = self.books.limits(None)
        reading = reading_of(
            values, row.layout, step=step, lr=current_rate(self.optimizer), batch_key=None, limits=limits
        )
        if scale is not None and reading.loss_scale:
            factor = 1.0 / reading.loss_scale
            reading = replace(
                reading, grad_norm=reading.grad_norm * factor, norms=[norm * factor for norm in reading.norms]
            )
        return reading if before_clip is None else _before_clipping(reading, before_clip, clipped)

    def named_parameters(self) -> dict[str, Tensor]:
        """The optimizer's parameters by name."""
        return dict(zip(self.names, self.parameters, strict=True))

    def finite_or_nothing(self) -> bool:
        """The bare check that is left when the guard itself has failed."""
        return all(p.grad is None or bool(torch.isfinite(p.grad.detach().to_dense()).all()) for p in self.parameters)

    def begin_update(self) -> None:
        """Put a backed-off learning rate in force for this update; repair a summed `found_inf`."""
        found = getattr(self.optimizer, "found_inf", None)
        if isinstance(found, Tensor):
            # GradScaler sums the flag over devices, and a kernel given 2.0 writes the bad update.
            self.optimizer.found_inf = found.clamp(max=1.0)  # type: ignore[attr-defined]
        factor = self.books.ledger.lr_factor
        if factor != 1.0:
            self._rates = [(group, group["lr"]) for group in self.optimizer.param_groups]
            for group, rate in self._rates:
                group["lr"] = rate * factor

    def end_update(self) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []

    def count_overflow(self, step: int) -> None:
        """Enter a step that the user's GradScaler dropped."""
        self.books.ledger = replace(
            self.books.ledger,
            steps=self.books.ledger.steps + 1,
            skipped=self.books.ledger.skipped + 1,
            overflows=self.books.ledger.overflows + 1,
        )


def _before_clipping(reading: Reading, total: float, clipped: Gradients | None) -> Reading:
    """The reading with the norms from before clipping. A bad norm turned every gradient bad, so then they are read
    one by one, to name the one that was bad first."""
    if math.isfinite(total) and math.isfinite(reading.grad_norm) and reading.grad_norm > 0:
        factor = total / reading.grad_norm
        return replace(reading, grad_norm=total, norms=[norm * factor for norm in reading.norms])
    if clipped is not None and not math.isfinite(total) and len(clipped.indices) == len(reading.norms):
        return replace(reading, grad_norm=total, norms=clipped.norms.tolist())
    return replace(reading, grad_norm=total) if not math.isfinite(total) else reading


def names_of(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> dict[int, str]:
    named = {id(p): setup.clean_name(name) for name, p in model.named_parameters()} if model is not None else {}
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(parameters_of(optimizer)):
            named.setdefault(id(parameter), f"optimizer{number}.{place}")
    return {id(p): named[id(p)] for optimizer in optimizers for p in parameters_of(optimizer)}
