"""The schedules of an optimizer, and whether by their own account a rate of zero is not the end."""

from __future__ import annotations

import weakref

from torch.optim import Optimizer
from torch.optim import lr_scheduler as kinds

from ..tensors.foreign_objects import getattr, isinstance
from ..tensors.living_objects import living

_PERIODIC = (kinds.CosineAnnealingLR, kinds.CosineAnnealingWarmRestarts, kinds.CyclicLR)
_FOR_A_WHILE = (kinds.ConstantLR, kinds.LinearLR)


class Schedules:
    """Looked for once, among all objects of the process: an optimizer does not know its schedules."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._found: list[weakref.ref[kinds.LRScheduler]] | None = None

    def come_back(self) -> bool:
        """Whether one of them raises the rate again without being told to."""
        optimizer = self._optimizer()
        if self._found is None:
            every = living(kinds.LRScheduler)
            self._found = [weakref.ref(each) for each in every if _is_of(each, optimizer)]
        schedules = [each for reference in self._found if (each := reference()) is not None]
        parts = {id(part) for each in schedules for part in getattr(each, "_schedulers", ())}
        return any(_comes_back(each) for each in schedules if id(each) not in parts)


def of_an_idle_optimizer(optimizer: Optimizer) -> str:
    """How a schedule moves the rates of an optimizer that made no update, while this one trains the same parameters
    and has no schedule: a sentence, or nothing. Looks through all objects of the process."""
    schedules = living(kinds.LRScheduler)
    if any(_is_of(each, optimizer) for each in schedules):
        return ""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for each in schedules:
        other = vars(each).get("optimizer")
        if not isinstance(other, Optimizer) or other.state or getattr(other, "_opt_called", False):
            continue
        groups = other.param_groups
        if any(group is mine for group in groups for mine in optimizer.param_groups):
            continue  # another handle on the same optimizer
        moved = any(group["lr"] != group.get("initial_lr", group["lr"]) for group in groups)
        if moved and own <= {id(parameter) for group in groups for parameter in group["params"]}:
            return f"{type(each).__name__} was stepped {each.last_epoch} times for an optimizer that made no update"
    return ""


def _is_of(schedule: kinds.LRScheduler, optimizer: Optimizer | None) -> bool:
    steps = vars(schedule).get("optimizer")
    return steps is not None and (steps is optimizer or getattr(steps, "optimizer", None) is optimizer)


def _comes_back(schedule: kinds.LRScheduler) -> bool:
    if isinstance(schedule, kinds.SequentialLR):
        return schedule.last_epoch < schedule._milestones[-1] or _comes_back(schedule._schedulers[-1])
    if isinstance(schedule, kinds.ChainedScheduler):
        return any(map(_comes_back, schedule._schedulers))
    if isinstance(schedule, _FOR_A_WHILE):
        return schedule.last_epoch < schedule.total_iters
    return isinstance(schedule, _PERIODIC)
