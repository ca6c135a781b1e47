"""A copy of what a step with a closure can change, taken before it and restored if it turns out bad."""

from __future__ import annotations

from torch.optim import LBFGS, Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...engine.state.training_state import TrainingState, copy_tree
from ...engine.step.trained_parameters import parameters_of


class StateCopy:
    """A copy of everything a step can change, the optimizer's own attributes too."""

    def __init__(self, optimizer: Optimizer, state: TrainingState) -> None:
        self._optimizer, self._state = optimizer, state
        self._tree = copy_tree(state.live(), lambda t: t.clone())
        self._attributes = {k: v for k, v in vars(optimizer).items() if isinstance(v, bool | int | float | str)}

    def restore(self) -> None:
        gradients = [p.grad for p in parameters_of(self._optimizer)]
        self._state.restore(self._tree)
        vars(self._optimizer).update(self._attributes)
        for parameter, gradient in zip(parameters_of(self._optimizer), gradients, strict=True):
            parameter.grad = gradient


def evaluates_more_than_once(optimizer: Optimizer) -> bool:
    """Whether `step(closure)` may evaluate several times, or update before it evaluates: LBFGS, and what is unknown."""
    return isinstance(optimizer, LBFGS) or not type(optimizer).__module__.startswith("torch.optim")
