"""What the diagnosis asks of whoever owns the failing step: the guard, a trainer's integration, or a case of the zoo.

A patient can be restored to the moment before the step and run through it again, part by part. The diagnosis composes
replays from these verbs and nothing else, so it never needs to know whose loop it is looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...records import Finding, StepRecord


class Replayable(Protocol):
    """One failing step, replayable as often as needed.

    `restore()` puts weights, buffers, optimizer state, RNG, scaler and `.grad` back to the moment before the step,
    bit for bit. `prepare()` redoes what the user's loop does between steps (schedules, resume). Then, for every
    micro-batch: `forward(batch)` gives the loss terms (unscaled, under the run's own autocast), `backward(terms)`
    runs backward as the run does (loss scale, division by the accumulation); at last `commit()` does what follows:
    unscale, clip, optimizer step. After the diagnosis is done the owner's state is as if nothing had happened.
    """

    model: torch.nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    batches: Sequence[Any]
    facts: StepFacts

    def restore(self) -> None: ...
    def prepare(self) -> None: ...
    def forward(self, batch: Any) -> Mapping[str, torch.Tensor]: ...
    def backward(self, terms: Mapping[str, torch.Tensor]) -> None: ...
    def commit(self) -> None: ...
    def examining(self) -> AbstractContextManager[None]:
        """Around a whole diagnosis: saves all state on entry, restores it bit for bit on exit."""
        ...


class FollowedReplayable(Replayable, Protocol):
    """A patient that also knows the steps after the failing one, so that a remedy can be followed for a while.

    `following(k)` gives the micro-batches of the k-th step after the failing one (None past the end) and
    `prepare_following(k)` redoes what the user's loop does before it. Both are optional: the diagnosis looks for them.
    """

    def following(self, ahead: int) -> Sequence[Any] | None: ...
    def prepare_following(self, ahead: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is known of the failing step besides its replay."""

    step: int = 0
    symptom: str | None = None
    findings: tuple[Finding, ...] = ()
    history: tuple[StepRecord, ...] = ()
    autocast: torch.dtype | None = None
    loss_scale: float | None = None
    max_grad_norm: float | None = None
    accumulation: int = 1
    device_type: str = "cpu"
    rank: int = 0
    sample_ids: Sequence[Sequence[Any] | None] = ()
    select_rows: Callable[[Any, Sequence[int]], Any] | None = None
    parameter_names: Mapping[int, str] = field(default_factory=dict)
    dynamic_scale: bool = False
    owners: frozenset[str] = frozenset()
    """Files that drive the loop and are not the user's code: their lines are never an origin."""
    earlier: Callable[[int], Any] | None = None
    """`earlier(k)`: the same patient k steps before, from a snapshot, or None where none is kept."""
    kept_steps: tuple[int, ...] = ()
    """The steps before which a copy of the state is kept, oldest first: `earlier` goes there without running."""
    bad_at_start: frozenset[tuple[str, str]] | None = None
    """(kind, name) of parameters and buffers that were bad before the very first step; None where it was not
    checked."""
