"""A function mode that sees backward too. The private way into the autograd engine that this takes is in this file."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...detect.tensors.foreign_objects import getattr, isinstance


class StaysInBackward(TorchFunctionMode):
    """A function mode that is still in place while `backward` runs: a checkpoint recomputes under it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "backward" and args and isinstance(args[0], torch.Tensor):
            return self._backward(args, kwargs or {})
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What becomes of any other call."""
        raise NotImplementedError

    def _backward(self, args: Any, kwargs: Any) -> Any:
        """Backward with this mode still in place, so that a recomputing checkpoint meets the changed line too."""
        unusual = kwargs.get("gradient") is not None or kwargs.get("inputs") is not None or kwargs.get("create_graph")
        if unusual or len(args) > 1 or args[0].dim():
            return torch.Tensor.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
        keep_graph = bool(kwargs.get("retain_graph"))
        engine = torch.autograd.Variable._execution_engine
        with self:
            engine.run_backward(
                (args[0],),
                (torch.ones_like(args[0]),),
                keep_graph,
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        return None
