"""The update itself: clip, then step every optimizer, under a device flag or without one.

A learning rate is lowered around one optimizer step only: the scheduler computes from its own numbers, and the rate
returns exactly when the factor returns to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...detect.gradient_norms import ClipRule, GradientProbe, Gradients, clip_exact
from ...policy.escalation import Ledger
from ..config import GuardConfig
from ..fault_barrier import UserCodeError, user_code
from ..state.forward_state import Entry, ForwardState
from .device_gate import DeviceGate, why_not_on_device
from .trained_parameters import parameters_of


class Updater:
    """Clips and steps. Knows nothing of whether it should."""

    def __init__(self, optimizers: Sequence[Optimizer], gate: DeviceGate, config: GuardConfig, scaler: Any) -> None:
        self._optimizers = optimizers
        self._gate = gate
        self.max_grad_norm = config.max_grad_norm
        self._folds = config.clip == "folded"
        self._scaler = scaler
        self._refuses = config.policy.acts

    @property
    def clips(self) -> bool:
        return self.max_grad_norm is not None

    def rule(self, force: Ledger, *, on_device: bool) -> ClipRule | None:
        """How gradients are clipped with what is in force; None if they are not."""
        if self.max_grad_norm is None:
            return None
        return ClipRule(self.max_grad_norm * force.clip_factor, self._folds and on_device)

    def __call__(
        self, gradients: Gradients | None, flag: Tensor | None, force: Ledger, factor: Tensor | None = None
    ) -> None:
        """Clip and step with what the ledger `force` has in force. With a flag the optimizers decide on the device
        whether to. `factor` is the clip rule's for these gradients, if it is known already. Does not sync."""
        if force.lr_factor == 1.0:
            self._clip_and_step(gradients, flag, force, factor)
        else:
            with scaled_learning_rate(self._optimizers, force.lr_factor):
                self._clip_and_step(gradients, flag, force, factor)

    def _clip_and_step(
        self, gradients: Gradients | None, flag: Tensor | None, force: Ledger, factor: Tensor | None
    ) -> None:
        divisor = self._clip(gradients, flag, force, factor)  # last: gradients can be clipped only once
        try:
            if self._scaler is not None and not self._refuses:
                # Nothing is refused while observing, but the scaler skips what it would skip in the plain loop.
                for optimizer in self._optimizers:
                    self._scaler.step(optimizer)
            elif flag is not None:
                self._gate.step(flag, divisor)
            else:
                for optimizer in self._optimizers:
                    optimizer.step()
        except Exception as error:
            raise UserCodeError(error) from error

    def outside(self, update: Callable[[], Any], force: Ledger) -> None:
        """Let the owner of the loop, who has clipped already, make its update with what is in force."""
        if force.clip_factor != 1.0 and self.max_grad_norm is not None:
            gradients = GradientProbe([p for o in self._optimizers for p in parameters_of(o)]).measure()
            if gradients is not None:
                clip_exact(gradients, self.max_grad_norm * force.clip_factor)
        with scaled_learning_rate(self._optimizers, force.lr_factor), user_code():
            update()

    def _clip(
        self, gradients: Gradients | None, flag: Tensor | None, force: Ledger, factor: Tensor | None
    ) -> Tensor | None:
        rule = self.rule(force, on_device=flag is not None)
        if rule is None or gradients is None:
            return None
        if rule.folded:
            return rule.factor(gradients.total) if factor is None else factor
        clip_exact(gradients, rule.max_norm, factor)
        return None

    def rate(self, ledger: Ledger) -> float:
        """The learning rate in force, for the journal."""
        return current_rate(self._optimizers[0]) * ledger.lr_factor

    def refuses_on_device(self) -> bool:
        """Whether every optimizer, as it stands now, can refuse an update itself."""
        return all(why_not_on_device(optimizer) is None for optimizer in self._optimizers)


class AfterUpdate:
    """What moves on after an applied update and only then: the schedule and the moving average."""

    def __init__(self, scheduler: Any, ema_update: Callable[[], Any] | None, forward: ForwardState) -> None:
        self.scheduler = scheduler
        self.ema_update = ema_update
        self.present = scheduler is not None or ema_update is not None
        self._forward = forward

    def advance(self, behind: Entry | None) -> None:
        """Step both. `behind` is the state before a forward that is already under way: a step settled late has the
        next window's forward behind it, and the average must not see its statistics."""
        for turn in self.turns(behind):
            turn()

    def turns(self, behind: Entry | None) -> list[Callable[[], None]]:
        """What `advance` does, each on its own."""
        turns = (self._step_schedule, self.scheduler), (lambda: self._average(behind), self.ema_update)
        return [turn for turn, follower in turns if follower is not None]

    def _step_schedule(self) -> None:
        with user_code():
            self.scheduler.step()

    def _average(self, behind: Entry | None) -> None:
        assert self.ema_update is not None
        with user_code(), self._forward.as_of(behind):
            self.ema_update()


def scaled_learning_rate(optimizers: Sequence[Optimizer], factor: float) -> AbstractContextManager[None]:
    """Within the block every group's learning rate is `factor` times its own. Does not sync."""
    return nullcontext() if factor == 1.0 else _scaled(optimizers, factor)


@contextmanager
def _scaled(optimizers: Sequence[Optimizer], factor: float) -> Iterator[None]:
    kept = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    for group, rate in kept:
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in kept:
            group["lr"] = rate


def current_rate(optimizer: Optimizer) -> float:
    """The first group's learning rate. A tensor rate on a GPU is not read (that would sync): NaN stands for it, and for
    one that the optimizer finds itself, as Adafactor does."""
    # A container of optimizers has no rate of its own.
    rate = optimizer.param_groups[0].get("lr", 0.0)
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else float("nan")
    return float("nan") if rate is None else float(rate)
