"""Everything a case's step can change, saved and restored bit for bit: tensors, structure, optimizer, scaler, RNG."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy
import torch

PLAIN = (int, float, bool, str, type(None))


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


class Snapshot:
    """One moment of a case. `restore` leaves the same objects in place with the bits they had."""

    def __init__(self, case: Any) -> None:
        self._case_fields = dict(case.__dict__)
        self._modules = [
            (
                module,
                dict(module._parameters),
                dict(module._buffers),
                dict(module._modules),
                module.training,
                {
                    key: _clone(value)
                    for key, value in module.__dict__.items()
                    if not key.startswith("_") and isinstance(value, (*PLAIN, torch.Tensor)) and key != "training"
                },
            )
            for module in case.model.modules()
        ]
        tensors = [*case.model.parameters(), *case.model.buffers()]
        if case.optimizer is not None:
            tensors += [p for group in case.optimizer.param_groups for p in group["params"]]
        self._tensors = {
            id(tensor): (tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad, _grad(tensor))
            for tensor in tensors
        }
        self._optimizer = _optimizer_state(case.optimizer) if case.optimizer is not None else None
        self._scaler = copy.deepcopy(case.scaler.state_dict()) if case.scaler is not None else None
        self._scheduler = copy.deepcopy(case.scheduler.state_dict()) if hasattr(case.scheduler, "state_dict") else None
        self._rng = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())

    @property
    def loss_scale(self) -> float | None:
        """The dynamic scaler's scale at this moment."""
        return float(self._scaler["scale"]) if self._scaler else None

    def restore(self, case: Any) -> None:
        case.__dict__.update(self._case_fields)
        for module, parameters, buffers, modules, training, plain in self._modules:
            for now, then in ((module._parameters, parameters), (module._buffers, buffers), (module._modules, modules)):
                if hasattr(now, "clear"):  # a scripted module shows copies of its own
                    now.clear()
                    now.update(then)
            module.training = training
            for key, value in plain.items():
                setattr(module, key, _clone(value))
        for tensor, storage, value, requires_grad, grad in self._tensors.values():
            if not tensor.is_leaf:  # it was written with a graph behind it
                tensor.detach_()
            with torch.no_grad():
                if tensor.data.data_ptr() != storage.data_ptr() or tensor.dtype != storage.dtype:
                    tensor.data = storage
                tensor.data.copy_(value)
            tensor.requires_grad_(requires_grad)
            tensor.grad = None if grad is None else grad.clone()
        if self._optimizer is not None:
            _restore_optimizer(case.optimizer, self._optimizer)
        if self._scaler is not None and self._scaler:
            case.scaler.load_state_dict(copy.deepcopy(self._scaler))
            case.scaler._per_optimizer_states.clear()
        if self._scheduler is not None:
            case.scheduler.load_state_dict(copy.deepcopy(self._scheduler))
        torch.set_rng_state(self._rng[0])
        random.setstate(self._rng[1])
        numpy.random.set_state(self._rng[2])


def _grad(tensor: torch.Tensor) -> torch.Tensor | None:
    return None if tensor.grad is None else tensor.grad.detach().clone()


def _optimizer_state(optimizer: torch.optim.Optimizer) -> Any:
    groups = [
        {key: list(v) if key == "params" else copy.copy(v) for key, v in g.items()} for g in optimizer.param_groups
    ]
    state = {parameter: {key: _clone(v) for key, v in values.items()} for parameter, values in optimizer.state.items()}
    return groups, state


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    groups, state = saved
    del optimizer.param_groups[len(groups) :]
    for now, then in zip(optimizer.param_groups, groups, strict=True):
        now.clear()
        now.update({key: list(v) if key == "params" else copy.copy(v) for key, v in then.items()})
    optimizer.state.clear()
    for parameter, values in state.items():
        optimizer.state[parameter] = {key: _clone(v) for key, v in values.items()}
