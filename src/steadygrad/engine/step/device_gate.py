"""The gate: whether an optimizer can refuse an update on the device, and making it do so.

Some fused optimizers take `found_inf`: a float32 scalar on their device that, when exactly 1.0, makes the kernel
leave parameters, moments and step counts as they are. Nothing else in torch can refuse an update without the host
knowing, so every other optimizer takes the host path: one read, and `step()` is not called.

Measured facts this file rests on: any value but exactly 0 or 1 corrupts the step count; foreach and for-loop forms
assert or silently ignore the flag; a group can be non-fused under a fused default and the other way round;
`load_state_dict` of a non-fused checkpoint turns `fused` off while the optimizer's own flag stays on; fused SGD
refused on its very first step keeps uninitialised memory as momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.quiet_hook import QuietHook, registered
from ...records.errors import UsageError
from .trained_parameters import WeakSequence
from .trained_parameters import parameters_of as parameters_of

_REFUSES_ON_DEVICE: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW)
_REFUSES_ON_CPU: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, Adagrad)


def why_not_on_device(optimizer: Optimizer) -> str | None:
    """None if this optimizer, as it stands now, can refuse an update on the device; else the reason, as a clause.

    Looks at every group, because the optimizer's own claim cannot be trusted. Cheap enough to ask every step.
    """
    devices = {p.device for group in optimizer.param_groups for p in group["params"][:1]}
    on_cpu = all(device.type == "cpu" for device in devices)
    kinds = _REFUSES_ON_CPU if on_cpu else _REFUSES_ON_DEVICE
    kind = next((k for k in kinds if type(optimizer).step is k.step and isinstance(optimizer, k)), None)
    if kind is None:
        return f"{type(optimizer).__name__} has no kernel that can refuse an update"
    if not all(group.get("fused") for group in optimizer.param_groups):
        return "it was not made with fused=True in every parameter group"
    if len(devices) != 1:
        return "its parameters are on several devices"
    hooks = (*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values())
    if any(type(hook) is not QuietHook for hook in hooks):
        return "it has step hooks, which would run on a refused step"
    return None


def check_supported(optimizer: Any, *, monitor: bool = False) -> None:
    """Raise one clear sentence for what cannot be guarded exactly; with `monitor` nothing has to be refused."""
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"Guard needs a torch.optim.Optimizer, got {type(optimizer).__name__}. "
            "Pass the optimizer itself (for an Accelerate wrapper: its .optimizer)."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and not monitor:
        raise UsageError(
            "LBFGS evaluates the loss several times inside step(), so a bad evaluation cannot be refused exactly. "
            "Use another optimizer, or watch it only: sg.attach(optimizer, policy='observe')."
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UsageError(
            "An optimizer made with differentiable=True keeps a graph of its steps, so a step cannot be undone. "
            "Make it without that option."
        )


class DeviceGate:
    """Makes fused optimizers refuse the update of one step. One per guard."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = WeakSequence(optimizers)
        self._fresh: list[tuple[Optimizer, list[Tensor]]] = []
        self._warm: dict[int, int] = {}
        self._armed = False
        self._hooks = [
            registered(o.register_load_state_dict_post_hook, lambda _: self._warm.clear()) for o in optimizers
        ]

    def release(self) -> None:
        """Leave no hook on the optimizers."""
        while self._hooks:
            self._hooks.pop().remove()

    def step(self, found_inf: Tensor, grad_scale: Tensor | None = None) -> None:
        """Run every optimizer with the flag; `grad_scale` divides gradients inside the kernel. Does not sync."""
        self.arm(found_inf, grad_scale)
        try:
            for optimizer in self._optimizers:
                optimizer.step()
        finally:
            self.disarm()

    def arm(self, found_inf: Tensor, grad_scale: Tensor | None = None) -> None:
        """The next step of every optimizer goes by this flag, whoever calls it; `disarm` after it. Does not sync."""
        self._fresh = []
        self._armed = True
        for optimizer in self._optimizers:
            self._note_fresh(optimizer)
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            optimizer.grad_scale = grad_scale  # type: ignore[attr-defined]

    def disarm(self) -> None:
        """No flag is in force any more. Does nothing where none was."""
        if self._armed:
            self._armed = False
            for optimizer in self._optimizers:
                vars(optimizer).pop("found_inf", None)
                vars(optimizer).pop("grad_scale", None)

    def _note_fresh(self, optimizer: Optimizer) -> None:
        # Once every parameter has its state there is nothing to look for, until the state is replaced or forgotten.
        if self._warm.get(id(optimizer)) == len(optimizer.state) > 0:
            return
        if fresh := _fresh_parameters(optimizer):
            self._fresh.append((optimizer, fresh))
        elif len(optimizer.state) == len(parameters_of(optimizer)):
            self._warm[id(optimizer)] = len(optimizer.state)

    def take_fresh(self) -> list[tuple[Optimizer, list[Tensor]]]:
        """Parameters that had no state before the last `step`; hand them to `forget_fresh` if it was refused."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def forget_fresh(self, fresh: list[tuple[Optimizer, list[Tensor]]]) -> None:
        """See the function of the same name; also looks afresh at the next step."""
        self._warm.clear()
        forget_fresh(fresh)


def forget_fresh(fresh: list[tuple[Optimizer, list[Tensor]]]) -> None:
    """After a refused first step: drop the state it made, so that the next step starts as if there had been none.

    For fused SGD this also discards the uninitialised momentum that torch leaves behind (its `empty_like` on the
    first step is never written when the update is refused).
    """
    for optimizer, parameters in fresh:
        for parameter in parameters:
            state = optimizer.state.get(parameter)
            if state is None:
                continue
            if "momentum_buffer" in state and len(state) == 1:
                state["momentum_buffer"] = None
            else:
                del optimizer.state[parameter]


def _fresh_parameters(optimizer: Optimizer) -> list[Tensor]:
    state = optimizer.state
    fresh: list[Tensor] = []
    for group in optimizer.param_groups:
        momentum = isinstance(optimizer, SGD) and group["momentum"] != 0
        if isinstance(optimizer, SGD) and not momentum:
            continue
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter not in state or (momentum and state[parameter].get("momentum_buffer") is None):
                fresh.append(parameter)
    return fresh
