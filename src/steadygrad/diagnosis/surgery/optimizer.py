"""Other options, another order or another memory for the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...detect.strays import stray_parameters
from ..patient import Patient
from ..replay import Change
from ..seen import StepSeen


class Options(Change):
    """Change numbers of every parameter group: `{"lr": lambda lr: lr * 0.01}`. Reapplied after each preparation."""

    def __init__(self, **edits: Any) -> None:
        self.edits = edits
        self._set: dict[tuple[int, str], Any] = {}
        self._before: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}

    def prepared(self, patient: Patient) -> None:
        for optimizer in patient.optimizers:
            for group in optimizer.param_groups:
                for key, edit in self.edits.items():
                    at = (id(group), key)
                    # A schedule may have written a new value since; what we wrote ourselves is left alone.
                    if key in group and group[key] != self._set.get(at, object()):
                        self._before.setdefault(at, (group, group[key]))
                        group[key] = self._set[at] = edit(group[key])

    def undo(self, patient: Patient) -> None:
        for (_, key), (group, value) in self._before.items():
            group[key] = value
        self._before.clear()
        self._set.clear()


class Warmup(Change):
    """The learning rate grows linearly to its full size over so many steps, whatever a schedule makes of it besides."""

    def __init__(self, steps: int) -> None:
        self.steps, self.taken = steps, 0
        self._full: dict[int, tuple[dict[str, Any], Any, Any]] = {}

    def prepared(self, patient: Patient) -> None:
        self.taken += 1
        share = min(1.0, self.taken / self.steps)
        for optimizer in patient.optimizers:
            for group in optimizer.param_groups:
                _, full, ours = self._full.get(id(group), (group, group["lr"], None))
                if ours is not None and group["lr"] != ours:
                    full = group["lr"]  # a schedule has moved on
                group["lr"] = full * share
                self._full[id(group)] = (group, full, group["lr"])

    def undo(self, patient: Patient) -> None:
        for group, full, _ in self._full.values():
            group["lr"] = full
        self._full.clear()


class ResetOptimizer(Change):
    """The optimizer forgets everything once, before the step."""

    def __init__(self) -> None:
        self._done = False

    def prepared(self, patient: Patient) -> None:
        if not self._done:
            self._done = True
            for optimizer in patient.optimizers:
                optimizer.state.clear()


class AddParameters(Change):
    """Parameters that no optimizer holds join the first group's options."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self._added = False

    def prepared(self, patient: Patient) -> None:
        if self._added or not patient.optimizers:
            return
        self._added = True
        missing = [p for name, p in patient.model.named_parameters() if name in self.names]
        patient.optimizers[0].add_param_group({"params": missing})

    def undo(self, patient: Patient) -> None:
        if self._added:
            patient.optimizers[0].param_groups.pop()
            self._added = False


class AdoptStrays(Change):
    """Parameters that the model itself does not know join the first optimizer, and are restored by us afterwards."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.moved: set[str] = set()
        self._kept: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor | None]] = []

    def prepared(self, patient: Patient) -> None:
        if self._kept or not patient.optimizers:
            return
        for name, parameter in stray_parameters(patient.model):
            if name in self.names:
                grad = None if parameter.grad is None else parameter.grad.detach().clone()
                self._kept.append((name, parameter, parameter.detach().clone(), grad))
                parameter.grad = None  # no one has cleared it so far
        patient.optimizers[0].add_param_group({"params": [parameter for _, parameter, _, _ in self._kept]})

    def commit(self, patient: Patient, seen: StepSeen) -> None:
        patient.commit()
        self.moved |= {name for name, parameter, value, _ in self._kept if not torch.equal(parameter.detach(), value)}

    def undo(self, patient: Patient) -> None:
        if self._kept:
            group = patient.optimizers[0].param_groups.pop()
            for parameter in group["params"]:
                patient.optimizers[0].state.pop(parameter, None)
        for _, parameter, value, grad in self._kept:
            parameter.data.copy_(value)
            parameter.grad = grad
        self._kept.clear()


class UnscaleFirst(Change):
    """The order that was meant: remove the loss scale once, then clip, then step."""

    def commit(self, patient: Patient, seen: StepSeen) -> None:
        scale = seen.loss_scale or 1.0
        parameters = [p for p in patient.model.parameters() if p.grad is not None]
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        if patient.facts.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, patient.facts.max_grad_norm)
        for optimizer in patient.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class WithoutZeroGradients(Change):
    """Parameters whose gradient is all zeros when an optimizer takes its step have none, so it leaves them alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def commit(self, patient: Patient, seen: StepSeen) -> None:
        chosen = [p for name, p in patient.model.named_parameters() if name in self.names]

        def drop(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            for parameter in chosen:
                if parameter.grad is not None and not bool(parameter.grad.any()):
                    parameter.grad = None

        handles = [optimizer.register_step_pre_hook(drop) for optimizer in patient.optimizers]
        try:
            patient.commit()
        finally:
            for handle in handles:
                handle.remove()


class Recompute(UnscaleFirst):
    """Take the step from a fresh forward and backward, with nothing in between."""


class ClearGradients(Change):
    """Leftover gradients are dropped before the step."""

    def __init__(self) -> None:
        self._done = False

    def prepared(self, patient: Patient) -> None:
        if not self._done:
            self._done = True
            for parameter in patient.model.parameters():
                parameter.grad = None
