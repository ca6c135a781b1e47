"""Other options, another order or another memory for the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...detect.tensors.unregistered_tensors import stray_parameters
from ..replay.replay_observation import ReplayObservation
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable


class Options(ReplayChange):
    """Change numbers of every parameter group: `{"lr": lambda lr: lr * 0.01}`. Reapplied after each preparation."""

    def __init__(self, **edits: Any) -> None:
        self.edits = edits
        self._set: dict[tuple[int, str], Any] = {}
        self._before: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}

    def prepared(self, replayable: Replayable) -> None:
        for optimizer in replayable.optimizers:
            for group in optimizer.param_groups:
                for key, edit in self.edits.items():
                    at = (id(group), key)
                    # A schedule may have written a new value since; what we wrote ourselves is left alone.
                    if key in group and group[key] != self._set.get(at, object()):
                        self._before.setdefault(at, (group, group[key]))
                        group[key] = self._set[at] = edit(group[key])

    def undo(self, replayable: Replayable) -> None:
        for (_, key), (group, value) in self._before.items():
            group[key] = value
        self._before.clear()
        self._set.clear()


class Warmup(ReplayChange):
    """The learning rate grows linearly to its full size over so many steps, whatever a schedule makes of it besides."""

    def __init__(self, steps: int) -> None:
        self.steps, self.taken = steps, 0
        self._full: dict[int, tuple[dict[str, Any], Any, Any]] = {}

    def prepared(self, replayable: Replayable) -> None:
        self.taken += 1
        share = min(1.0, self.taken / self.steps)
        for optimizer in replayable.optimizers:
            for group in optimizer.param_groups:
                _, full, ours = self._full.get(id(group), (group, group["lr"], None))
                if ours is not None and group["lr"] != ours:
                    full = group["lr"]  # a schedule has moved on
                group["lr"] = full * share
                self._full[id(group)] = (group, full, group["lr"])

    def undo(self, replayable: Replayable) -> None:
        for group, full, _ in self._full.values():
            group["lr"] = full
        self._full.clear()


class ResetOptimizer(ReplayChange):
    """The optimizer forgets everything once, before the step."""

    def __init__(self) -> None:
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if not self._done:
            self._done = True
            for optimizer in replayable.optimizers:
                optimizer.state.clear()


class AddParameters(ReplayChange):
    """Parameters that no optimizer holds join the first group's options."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self._added = False

    def prepared(self, replayable: Replayable) -> None:
        if self._added or not replayable.optimizers:
            return
        self._added = True
        missing = [p for name, p in replayable.model.named_parameters() if name in self.names]
        replayable.optimizers[0].add_param_group({"params": missing})

    def undo(self, replayable: Replayable) -> None:
        if self._added:
            replayable.optimizers[0].param_groups.pop()
            self._added = False


class AdoptStrays(ReplayChange):
    """Parameters that the model itself does not know join the first optimizer, and are restored by us afterwards."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.moved: set[str] = set()
        self._kept: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor | None]] = []

    def prepared(self, replayable: Replayable) -> None:
        if self._kept or not replayable.optimizers:
            return
        for name, parameter in stray_parameters(replayable.model):
            if name in self.names:
                grad = None if parameter.grad is None else parameter.grad.detach().clone()
                self._kept.append((name, parameter, parameter.detach().clone(), grad))
                parameter.grad = None  # no one has cleared it so far
        replayable.optimizers[0].add_param_group({"params": [parameter for _, parameter, _, _ in self._kept]})

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        replayable.commit()
        self.moved |= {name for name, parameter, value, _ in self._kept if not torch.equal(parameter.detach(), value)}

    def undo(self, replayable: Replayable) -> None:
        if self._kept:
            group = replayable.optimizers[0].param_groups.pop()
            for parameter in group["params"]:
                replayable.optimizers[0].state.pop(parameter, None)
        for _, parameter, value, grad in self._kept:
            parameter.data.copy_(value)
            parameter.grad = grad
        self._kept.clear()


class UnscaleFirst(ReplayChange):
    """The order that was meant: remove the loss scale once, then clip, then step."""

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        scale = seen.loss_scale or 1.0
        parameters = [p for p in replayable.model.parameters() if p.grad is not None]
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        if replayable.facts.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, replayable.facts.max_grad_norm)
        for optimizer in replayable.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class WithoutZeroGradients(ReplayChange):
    """Parameters whose gradient is all zeros when an optimizer takes its step have none, so it leaves them alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        chosen = [p for name, p in replayable.model.named_parameters() if name in self.names]

        def drop(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            for parameter in chosen:
                if parameter.grad is not None and not bool(parameter.grad.any()):
                    parameter.grad = None

        handles = [optimizer.register_step_pre_hook(drop) for optimizer in replayable.optimizers]
        try:
            replayable.commit()
        finally:
            for handle in handles:
                handle.remove()


class Recompute(UnscaleFirst):
    """Take the step from a fresh forward and backward, with nothing in between."""


class ClearGradients(ReplayChange):
    """Leftover gradients are dropped before the step."""

    def __init__(self) -> None:
        self._done = False

    def prepared(self, replayable: Replayable) -> None:
        if not self._done:
            self._done = True
            for parameter in replayable.model.parameters():
                parameter.grad = None
