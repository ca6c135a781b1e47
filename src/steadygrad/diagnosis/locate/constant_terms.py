"""Terms of a loss that are numbers: what is added to it and has no gradient, though it depends on the weights.

The forward pass of a step is made three times, the last time with the weights moved. Only what enters the loss
linearly counts: the target of an error has no gradient on purpose. A term that is detached where it is a single number
is shown on purpose, and left alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...checkup.trials.batch_rules import detached_graph
from ...detect.graph.autograd_graph import walked
from ...detect.graph.rules.losses.loss_inputs import linear_nodes
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...engine.state.batch_buffer import pristine
from ...records import Finding
from ..replay.replay_step import CANNOT_RUN, ReplayChange
from ..replay.replayable import Replayable

_ADDS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_SUBTRACTS = frozenset({"sub", "sub_", "rsub", "subtract", "__sub__", "__rsub__", "__isub__"})


class _AddedNumbers(TorchFunctionMode):
    """What is added to single numbers that have a gradient, without having one."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: list[tuple[Tensor, Any]] = []
        self._shown: list[Tensor] = []
        """Single numbers that were detached, and what was computed from them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == 1:
            name = getattr(func, "__name__", "")
            on_show = any(each is one for one in args for each in self._shown)
            if on_show or (name in ("detach", "detach_") and args[0].numel() == 1):
                self._shown.append(result)
            if name in _ADDS | _SUBTRACTS and result.grad_fn is not None and len(args) > 1:
                self._sums += [(result, each) for each in args[:2] if _is_number(each) and not self._is_shown(each)]
        return result

    def _is_shown(self, value: Any) -> bool:
        return any(value is each for each in self._shown)

    def of(self, loss: Tensor) -> list[float]:
        """The numbers that enter this loss linearly, in the order in which they were added."""
        with walked(loss) as graph:
            linear: set[Any] = {node.handle for node in linear_nodes(graph)}
        return [float(number) for total, number in self._sums if total.grad_fn in linear]


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.requires_grad
    return isinstance(value, float)


def constant_term(replayable: Replayable, move: ReplayChange) -> Finding | None:
    """A number in the loss that is another one when the weights are moved. Only inside an examination.

    Not of several optimizers: what one of them does not train may be a number in the loss of the other.
    """
    if len(replayable.optimizers) != 1:
        return None
    try:
        plain, again, moved = (_numbers(replayable, change) for change in (None, None, move))
    except CANNOT_RUN:
        return None
    finally:
        replayable.restore()
    return detached_graph.judge_terms(plain, again, moved)


def _numbers(replayable: Replayable, change: ReplayChange | None) -> list[float]:
    replayable.restore()
    if change is not None:
        change.prepared(replayable)
    with torch.enable_grad(), _AddedNumbers() as added:
        loss = replayable.forward(pristine(replayable.batches[0], clone=True))["loss"]
    numbers: list[float] = added.of(loss)
    return numbers


def trained_by(replayable: Replayable) -> Collection[str]:
    """The names of the parameters that the step trains."""
    held = {id(p) for optimizer in replayable.optimizers for group in optimizer.param_groups for p in group["params"]}
    return frozenset(name for name, parameter in replayable.model.named_parameters() if id(parameter) in held)


def without_gradient(replayable: Replayable) -> list[str]:
    """The names of the parameters that the step trains and that its loss gives no gradient."""
    trained = trained_by(replayable)
    named = {name: p for name, p in replayable.model.named_parameters() if name in trained and p.requires_grad}
    replayable.restore()
    try:
        with torch.enable_grad():
            loss = replayable.forward(pristine(replayable.batches[0], clone=True))["loss"]
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    except CANNOT_RUN:
        return []
    finally:
        replayable.restore()
    return [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
