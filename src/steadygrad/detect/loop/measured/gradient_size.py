"""How much smaller the program makes its gradients before an update, and whether the optimizer cares.

Measured in host memory, at the first updates only, and only where the program changes gradients at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...tensors.foreign_objects import isinstance
from ...tensors.living_objects import living
from ..loop_record import GradientSize

_MEASURED = 16
_SUSPICIOUS = 0.01


def _no_scaler() -> None:
    return None


def _scaler_of(optimizer: Optimizer) -> Any:
    """The GradScaler whose step makes the update of this optimizer that is under way, if any. Walks all living objects:
    asked once."""
    known = (s for s in living(torch.amp.GradScaler) if s.is_enabled() and id(optimizer) in s._per_optimizer_states)
    return next(known, None)


class GradientSizes:
    """Measures one optimizer's gradients. Keeps nothing alive after the first updates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.off = False
        """Nothing may be read."""
        self._changes = False
        self._after_backward: Tensor | None = None
        self._at_update: Tensor | None = None
        self._moved: tuple[Tensor, Tensor, float] | None = None
        self._scaler: Callable[[], Any] | None = None

    def after_backward(self, update: int) -> None:
        self._after_backward = self._norm() if self._changes and update < _MEASURED and not self.off else None

    def before_update(self, *, changed: bool) -> None:
        self._changes = changed
        self._at_update = self._moved = None
        if self._after_backward is None or not changed or self.off:
            return
        self._at_update = self._norm()
        if self._at_update is not None and self._at_update < _SUSPICIOUS * self._after_backward:
            self._after_backward = self._after_backward / self._loss_scale()
        found = [
            (parameter, float(group["lr"]))
            for parameter, group in self._parameters()
            if parameter.grad is not None and not isinstance(group.get("lr"), Tensor) and group.get("lr")
            if parameter.is_floating_point()
        ]
        if found:
            parameter, rate = min(found, key=lambda pair: pair[0].numel())
            self._moved = parameter, parameter.detach().clone(), rate

    def after_update(self) -> list[GradientSize]:
        """The sizes of this update, where they were measured."""
        before, now, moved = self._after_backward, self._at_update, self._moved
        self._after_backward = self._at_update = self._moved = None
        gradient = moved[0].grad if moved is not None else None
        if before is None or now is None or moved is None or gradient is None:
            return []
        parameter, weights, rate = moved
        length = (parameter.detach() - weights).float().norm()
        sizes = torch.stack([before, now, length / (rate * parameter.numel() ** 0.5)])
        return [GradientSize(*sizes.tolist())]

    def _loss_scale(self) -> float:
        """What the loss of this update was multiplied with, where a GradScaler steps the optimizer."""
        if self._scaler is None:
            optimizer = self._optimizer()
            scaler = None if optimizer is None else _scaler_of(optimizer)
            self._scaler = _no_scaler if scaler is None else weakref.ref(scaler)
        scaler = self._scaler()
        return 1.0 if scaler is None else float(scaler.get_scale())

    def _parameters(self) -> list[tuple[Tensor, dict[str, Any]]]:
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        return [(parameter, group) for group in groups for parameter in group["params"]]

    def _norm(self) -> Tensor | None:
        gradients = [parameter.grad for parameter, _ in self._parameters() if parameter.grad is not None]
        if not gradients or any(g.layout is not torch.strided or g.is_complex() for g in gradients):
            return None
        if len({gradient.device for gradient in gradients}) > 1:
            return None
        norms = torch._foreach_norm([gradient.detach() for gradient in gradients])
        total: Tensor = torch.stack([norm.float() for norm in norms]).norm()
        return total
