"""Objects that are only borrowed: whatever is run with them, they come back bit for bit as they were.

Weights, gradients, moments, step counts, buffers, counters on modules, modes, and all random numbers are copied to the
host, and copied back into the same storage, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...engine.state.forward_state import ForwardState
from ...engine.state.training_state import TrainingState, copy_tree


class BorrowedObjects:
    """What was lent, and the way back to it. `unreturnable` names what changed and cannot be restored."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], loss_fn: Any = None) -> None:
        roots = [model, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])]
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        every = {id(p): p for p in [*(p for root in roots for p in root.parameters()), *held]}
        self._parameters = list(every.values())
        self._forward = ForwardState(roots)
        self._state = TrainingState(
            parameters={str(number): p for number, p in enumerate(self._parameters)},
            optimizers=optimizers,
            forward=self._forward,
        )
        self._values = copy_tree(self._state.live(), _on_host)
        self._gradients = [(p.grad, None if p.grad is None else p.grad.detach().clone()) for p in self._parameters]
        self._modes = [(module, module.training) for root in roots for module in root.modules()]
        # A scheduler notes on the optimizer whether step() was called, and warns by it.
        self._marks = [(optimizer, _plain_attributes(optimizer)) for optimizer in optimizers]
        self.unreturnable: tuple[str, ...] = ()

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was. May be called as often as needed."""
        self._forward.notice()
        self._forward.audit()
        self.unreturnable = tuple({*self.unreturnable, *self._forward.unregistered()})
        self._state.restore(self._values)
        for parameter, (gradient, values) in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
            if gradient is not None and values is not None:
                gradient.copy_(values)
        for module, training in self._modes:
            module.training = training
        for optimizer, marks in self._marks:
            for name in [name for name in _plain_attributes(optimizer) if name not in marks]:
                delattr(optimizer, name)
            vars(optimizer).update(marks)


@contextmanager
def borrowed(model: nn.Module, optimizers: Sequence[Optimizer] = (), loss_fn: Any = None) -> Iterator[BorrowedObjects]:
    """Within the block anything may be done with these objects; afterwards they are as they were, also on an error."""
    lent = BorrowedObjects(model, optimizers, loss_fn)
    try:
        yield lent
    finally:
        lent.put_back()


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _plain_attributes(thing: object) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if type(value) in (bool, int, float)}
