"""What a program does after each update and must not do after a refused one: its schedule, its average of the weights.

A schedule is held for one call when exactly one update was due since its last call and that one was refused. So a
schedule that is stepped once an epoch goes on whatever its last batch was. One that is given a metric
(ReduceLROnPlateau) is held only if that is not finite: the metric of an evaluation is not the refused batch's.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from ....detect.tensors.foreign_objects import getattr, isinstance

_USES = 2


class _Depth(threading.local):
    """How many followers of this thread are being called, one inside another."""

    calls = 0


class SchedulersAndAverages:
    """Counts the updates of each optimizer between two calls of each follower."""

    def __init__(self, on_call: Callable[[Any, Callable[[], Any]], None] | None = None) -> None:
        self._on_call = on_call
        self._known: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._updates: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._refused: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._inside = _Depth()
        self.held = 0

    def updated(self, optimizer: Optimizer, *, refused: bool) -> None:
        """One update was due: it was applied, or it was refused."""
        self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        if refused:
            self._refused.add(optimizer)
        else:
            self._refused.discard(optimizer)

    def note(self, follower: Any, optimizer: Any) -> None:
        """A schedule or an average of this optimizer exists."""
        if isinstance(optimizer, Optimizer):
            known = self._known.setdefault(optimizer, [])
            if not any(each() is follower for each in known):
                known.append(weakref.ref(follower))

    def of(self, optimizers: Sequence[Optimizer]) -> list[Any]:
        """The followers of these optimizers that are still alive, in the order in which they were met."""
        references = [each for optimizer in optimizers for each in self._known.get(optimizer, [])]
        return [follower for each in references if (follower := each()) is not None]

    def refused(self, optimizer: Optimizer) -> bool:
        """Whether the last update of this optimizer was refused."""
        return optimizer in self._refused

    def call(
        self, follower: Any, optimizer: Any, original: Callable[[], Any], may_hold: Callable[[], bool] | None = None
    ) -> Any:
        """Let a follower go on, or not; `may_hold` tells whether it is about the refused update at all. One that calls
        others inside (a chain of schedules) is asked once."""
        if self._inside.calls or not isinstance(optimizer, Optimizer):
            return original()
        updates = self._updates.get(optimizer, 0)
        since = updates - self._seen.get(follower, 0)
        self._seen[follower] = updates
        if since == 1 and optimizer in self._refused and (may_hold is None or may_hold()):
            self.held += 1
            return None
        self.note(follower, optimizer)
        if self._on_call is not None:
            self._on_call(optimizer, weakly_called(original))
        self._inside.calls += 1
        try:
            return original()
        finally:
            self._inside.calls -= 1

    def again(self, call: Callable[[], Any]) -> Any:
        """What a follower did once is done once more, after a state from before it was restored."""
        self._inside.calls += 1
        try:
            return call()
        finally:
            self._inside.calls -= 1


class UsedAverages:
    """Averaged models of torch, and after how many updates they were called."""

    def __init__(self) -> None:
        self._used: weakref.WeakKeyDictionary[AveragedModel, list[int]] = weakref.WeakKeyDictionary()

    def used(self, average: AveragedModel, updates: int) -> None:
        known = self._used.setdefault(average, [])
        if updates and updates not in known[-1:] and len(known) < _USES:
            known.append(updates)

    def idle(self, model: nn.Module) -> str:
        """How one of this model is used and was never updated: a sentence, or nothing. Reads the device."""
        shapes = _shapes(model)
        for average, known in self._used.items():
            if len(known) < _USES or shapes != _shapes(average.module):
                continue
            if int(average.n_averaged) == 0:
                after = " and ".join(map(str, known))
                return f"averaged weights were used after {after} updates and never updated: they are the initial ones"
        return ""


def _shapes(model: nn.Module) -> list[torch.Size]:
    return [parameter.shape for parameter in model.parameters() if not is_lazy(parameter)]


def weakly_called(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, which keeps none of the schedules and models among its arguments alive, and does nothing once one
    of them is gone."""
    if not isinstance(call, functools.partial):
        return call
    function, named = call.func, call.keywords
    given = [weakref.ref(each) if isinstance(each, LRScheduler | nn.Module) else each for each in call.args]

    def again() -> Any:
        found = [each() if type(each) is weakref.ref else each for each in given]
        gone = any(now is None for now, each in zip(found, given, strict=True) if type(each) is weakref.ref)
        return None if gone else function(*found, **named)

    return again


def raw_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside a framework's wrapper."""
    for _ in range(4):
        inside = getattr(optimizer, "optimizer", None)
        if not isinstance(inside, Optimizer):
            break
        optimizer = inside
    return optimizer
