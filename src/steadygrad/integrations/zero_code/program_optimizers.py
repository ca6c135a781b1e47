"""The optimizers of a program, those that have stepped and those that have not, and which of them trains a model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...engine.step.trained_parameters import parameters_of
from ..optimizer.optimizer_loop import OptimizerLoop

_IN_TURN = 3
"""An optimizer that came back so often after another one, each time with a new loss, takes turns with it."""


class ProgramOptimizers:
    """None of them is kept alive. `on_gone()` is called when one is gone, wherever the program is just then."""

    def __init__(self, on_gone: Callable[[], None] = lambda: None) -> None:
        self._on_gone = on_gone
        self._references: set[weakref.ref[Optimizer]] = set()
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.several = False
        """Whether there is more than one. Asked many times in each step."""
        self._loops: weakref.WeakKeyDictionary[Optimizer, weakref.ref[OptimizerLoop]] = weakref.WeakKeyDictionary()
        self._turns: weakref.WeakKeyDictionary[OptimizerLoop, int] = weakref.WeakKeyDictionary()
        self.last: Callable[[], OptimizerLoop | None] = lambda: None
        """The loop that made the newest update, while it is there."""

    def made(self, optimizer: Optimizer, step: int) -> None:
        """An optimizer was made before this step."""
        self._made[optimizer] = step
        self._references.add(weakref.ref(optimizer, self._gone))
        self.several = len(self._references) > 1

    def _gone(self, reference: weakref.ref[Optimizer]) -> None:
        self._references.discard(reference)
        self.several = len(self._references) > 1
        try:  # nothing of this may reach the program, which may be at its end
            self._on_gone()
        except Exception:
            pass

    def stepped(self, loop: OptimizerLoop) -> None:
        """An optimizer steps for the first time. One that was copied or unpickled is heard of only here."""
        if loop.optimizer not in self._made:
            self.made(loop.optimizer, loop.step)
        self._loops[loop.optimizer] = weakref.ref(loop)

    def takes_turn(self, loop: OptimizerLoop, *, own_loss: bool) -> None:
        """Another optimizer steps than before, with a loss that was not there for the one before. Where two or more
        keep coming back like this (two networks at play, an actor and its critic), what one of them learns moves the
        loss of the other: how high their losses stand is not judged, unless the user wants spikes refused."""
        first, self.last = self.last() is None, weakref.ref(loop)
        if first or not own_loss:
            return
        self._turns[loop] = turns = self._turns.get(loop, 0) + 1
        policy = loop.engine.policy
        if turns < _IN_TURN or policy.refuse_spikes or not policy.judge_loss_level:
            return
        together = [each for each, count in self._turns.items() if count >= _IN_TURN]
        for each in together if len(together) > 1 else ():
            each.engine.policy = each.log.policy = policy.but(judge_loss_level=False)

    def living(self) -> list[Optimizer]:
        """Those that are still there."""
        return list(self._made)

    @property
    def num_stepped(self) -> int:
        return len(self._loops)

    def loop_of(self, optimizer: Optimizer) -> OptimizerLoop | None:
        """The loop of an optimizer that has stepped."""
        reference = self._loops.get(optimizer)
        return reference() if reference is not None else None

    def that_stepped(self, model: Any) -> Optimizer | None:
        """The optimizer that trains this model, if one has stepped."""
        first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
        loops = ((optimizer, self.loop_of(optimizer)) for optimizer in list(self._loops))
        return next((o for o, loop in loops if loop is not None and any(first is p for p in loop.parameters)), None)

    def trainer_of(self, *models: nn.Module) -> Optimizer | None:
        """The optimizer that trains the first of these models that is trained, whether or not it has stepped yet."""
        return next((found for model in models for found in self.trainers_of(model)), None)

    def trainers_of(self, model: nn.Module) -> list[Optimizer]:
        """The optimizers that train this model, whether or not they have stepped yet."""
        own = {id(parameter) for parameter in model.parameters()}
        return [each for each in self.living() if any(id(parameter) in own for parameter in parameters_of(each))]

    def other_trainers(self, model: nn.Module, optimizer: Optimizer) -> list[Optimizer]:
        """The optimizers that train this model too; not those that were not stepped since this one was made."""
        own, made = {id(parameter) for parameter in model.parameters()}, self._made.get(optimizer, 0)
        loops = [(each, self.loop_of(each)) for each in self.living() if each is not optimizer]
        others = [o for o, loop in loops if loop is None or not loop.log.recent or loop.log.recent[-1].step >= made]
        return [each for each in others if any(id(p) in own for p in parameters_of(each))]
