"""A step some updates before a refused one, from a copy of the state, with the updates that really followed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....diagnosis.isolation.resource_limits import limits
from ....engine.state.training_state import Tree, copy_tree
from .good_states import AppliedUpdate, GoodStates, put_groups
from .loop_step import LoopPassBatch, LoopStep

_SHARE = 0.25
"""Going to a step from a copy before it takes no more of the time that a diagnosis may take."""


class EarlierLoopStep:
    """Satisfies `diagnosis.replay.replayable.FollowedReplayable`. Lives inside the examination of the later step,
    whose state is restored at its end."""

    def __init__(self, later: LoopStep, step: int, parts: Tree, updates: Sequence[AppliedUpdate]) -> None:
        self._later, self._parts, self._updates = later, parts, updates
        self.model, self.optimizers = later.model, later.optimizers
        self.batches: Sequence[Any] = _batches(updates[0])
        self.facts = replace(later.facts, step=step, earlier=None, kept_steps=())
        self._at = 0

    def restore(self) -> None:
        self._later.restore_other(self._parts)
        self._at = 0

    def prepare(self) -> None:
        self.prepare_following(0)

    def following(self, ahead: int) -> Sequence[Any] | None:
        """The updates that were made, the refused step, and what stands in for those after it."""
        since = ahead - len(self._updates)
        if since < 0:
            return _batches(self._updates[ahead])
        return self._later.batches if since == 0 else self._later.following(since)

    def prepare_following(self, ahead: int) -> None:
        """No gradients left over, and the rates that the loop had set for this update."""
        self._at = ahead
        self._later.prepare_following(ahead)
        if ahead < len(self._updates):
            put_groups(self.optimizers[0], self._updates[ahead].groups)

    def forward(self, batch: LoopPassBatch) -> Mapping[str, Tensor]:
        return self._later.forward(batch)

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        self._later.backward(terms)

    def commit(self) -> None:
        """Clipped as the loop clipped its last update, then the optimizer's step."""
        clip = self._updates[min(self._at, len(self._updates) - 1)].clip
        if clip is not None:
            parameters = [p for group in self.optimizers[0].param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        self._later.commit()

    @contextmanager
    def examining(self) -> Iterator[None]:
        yield


def look_back(later: LoopStep, past: GoodStates) -> None:
    """Give a step the ways back that are kept."""

    there: dict[int, EarlierLoopStep | None] = {}

    def earlier(back: int) -> EarlierLoopStep | None:
        if back not in there:
            there[back] = found_at(back)
        return there[back]

    def found_at(back: int) -> EarlierLoopStep | None:
        step = later.facts.step - back
        at = max((kept for kept in past.steps if kept <= step), default=step) if back == 1 else step
        found = past.kept_at(later.loop, at, later.facts.step)
        if found is None or later.forward_only:
            return None
        return _at_step(later, at, step, *found)

    later.facts = replace(later.facts, earlier=earlier, kept_steps=tuple(past.steps))


def _at_step(
    later: LoopStep, at: int, step: int, parts: Tree, updates: Sequence[AppliedUpdate]
) -> EarlierLoopStep | None:
    """The step itself, by making the updates between a kept state and it again; None where that takes too long."""
    start, since = EarlierLoopStep(later, at, parts, updates), sum(update.step < step for update in updates)
    if not since:
        return start
    if since == len(updates):
        return None
    start.restore()
    for ahead in range(since):
        if limits().elapsed > _SHARE * limits().seconds:
            return None
        start.prepare_following(ahead)
        for batch in _batches(updates[ahead]):
            start.backward(start.forward(batch))
        start.commit()
    there = copy_tree({key: value for key, value in later.live().items() if key in parts}, torch.clone)
    return EarlierLoopStep(later, step, there, updates[since:])


def _batches(landed: AppliedUpdate) -> list[LoopPassBatch]:
    return [LoopPassBatch(loop_pass, loop_pass.batch) for loop_pass in landed.loop_passes]
