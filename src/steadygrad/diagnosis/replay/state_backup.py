"""A run's state with its shape: values, storages, dtypes, module and optimizer structure.

Surgery may widen weights, swap buffers or rebuild an optimizer. Restoring means the same objects in the same
places with the bits they had, so that whoever else holds them (a compiled graph, an EMA) sees nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...engine.state.training_state import TrainingState, Tree, copy_tree
from ..isolation import device_memory as memory
from ..isolation.resource_limits import fits


class StateBackup:
    """Everything at one moment. Takes one copy of the state; `restore` may be called as often as needed.

    The copy lies on the host where the device has not enough memory to spare for it.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], state: TrainingState) -> None:
        self._state = state
        live = state.live()
        tensors = tensors_in(live)
        beside = fits(tensors, beside_a_step=True)
        memory.ask_host(sum(memory.bytes_of(t) for t in tensors if not beside or t.device.type == "cpu"))
        self._values: Tree = copy_tree(live, memory.copied if beside else memory.copied_to_host)
        self._modules = [
            (module, dict(module._parameters), dict(module._buffers), dict(module._modules), module.training)
            for module in model.modules()
        ]
        owned = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        self._tensors = [
            (p, p.data, p.requires_grad) for p in {id(p): p for p in [*model.parameters(), *owned]}.values()
        ]
        self._optimizers = [(optimizer, _structure(optimizer)) for optimizer in optimizers]

    @torch.no_grad()
    def restore(self, other: Tree | None = None) -> None:
        """The same objects in the same places, with the same bits; `other` are parts of the state from elsewhere."""
        for module, parameters, buffers, modules, training in self._modules:
            for now, then in ((module._parameters, parameters), (module._buffers, buffers), (module._modules, modules)):
                if list(map(id, now.values())) != list(map(id, then.values())):
                    now.clear()
                    now.update(then)  # type: ignore[arg-type]
            module.training = training
        for tensor, storage, requires_grad in self._tensors:
            if tensor.data_ptr() != storage.data_ptr() or tensor.dtype != storage.dtype:
                tensor.data = storage
            tensor.requires_grad_(requires_grad)
        for _, _, buffers, _, _ in self._modules:
            for buffer in buffers.values():
                if buffer is not None and not buffer.is_leaf:
                    buffer.detach_()  # someone wrote it with a graph behind it
        for optimizer, (groups, state) in self._optimizers:
            del optimizer.param_groups[len(groups) :]
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update({key: list(value) if key == "params" else value for key, value in kept.items()})
            optimizer.state.clear()
            for parameter, values in state.items():
                optimizer.state[parameter] = _copied(values)
        self._state.restore({**self._values, **(other or {})})


def _structure(optimizer: Optimizer) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
    groups = [{key: list(v) if key == "params" else v for key, v in group.items()} for group in optimizer.param_groups]
    return groups, {parameter: _copied(values) for parameter, values in optimizer.state.items()}


def _copied(values: Any) -> Any:
    return dict(values) if isinstance(values, dict) else values
