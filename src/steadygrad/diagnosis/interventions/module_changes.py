"""One module in float32, and checkpoints that let gradients through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import checkpoint as checkpoints

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import can_be_copied
from ...detect.tensors.torch_private import tree_map
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable


class UpcastModule(ReplayChange):
    """The named module computes in float32 with autocast off; what it returns stays float32."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._weights: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._module: torch.nn.Module | None = None

    def prepared(self, replayable: Replayable) -> None:
        if self._module is not None:
            return
        module = self._module = replayable.model.get_submodule(self.name)
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.dtype in (torch.float16, torch.bfloat16) and can_be_copied(tensor):
                self._weights.append((tensor, tensor.data))
                tensor.grad = None
                tensor.data = tensor.data.float()
        forward, device = module.forward, replayable.facts.device_type

        def widened(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map(_widen, args), tree_map(_widen, kwargs)
            with torch.autocast(device, enabled=False):
                return forward(*args, **kwargs)

        module.forward = widened

    def undo(self, replayable: Replayable) -> None:
        if self._module is not None:
            del self._module.forward
            self._module = None
        for tensor, data in reversed(self._weights):
            tensor.grad = None
            tensor.data = data
        self._weights.clear()


def _widen(item: Any) -> Any:
    half = isinstance(item, torch.Tensor) and item.dtype in (torch.float16, torch.bfloat16)
    return item.float() if half else item


class OpenCheckpoints(ReplayChange):
    """Re-entrant checkpoints either run without re-entry, or get inputs that require grad."""

    def __init__(self, *, reentrant: bool) -> None:
        self.reentrant = reentrant

    @contextmanager
    def around(self) -> Iterator[None]:
        function: Any = checkpoints.CheckpointFunction
        apply = function.apply

        def opened(run: Any, preserve: Any, *args: Any) -> Any:
            if self.reentrant:
                return apply(run, preserve, *[_requiring(arg) for arg in args])
            return checkpoints.checkpoint(run, *args, use_reentrant=False, preserve_rng_state=preserve)

        function.apply = staticmethod(opened)
        try:
            yield
        finally:
            del function.apply


def _requiring(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and item.is_floating_point() and not item.requires_grad:
        return item.detach().requires_grad_(True)
    return item
