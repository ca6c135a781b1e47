"""The record of a training loop: what was called before each update. Plain numbers; standard library only."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

KEPT = 64
"""Updates that are remembered."""


@dataclass(frozen=True, slots=True)
class GradientSize:
    """Of one update: the norm after backward, the norm at the update, and how far an element of one tensor was moved,
    in units of the rate. The last is near one for optimizers that divide by the gradient's size, such as Adam."""

    after_backward: float
    at_update: float
    per_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSeen:
    """One update of one optimizer, and what happened since the update before."""

    step: int = 0
    closure: bool = False
    """The loop gave the optimizer a closure: backward runs inside the update."""
    in_turn: bool = False
    """Another optimizer was stepped since the last update of this one."""
    backwards: int = 1
    """Backward passes that gave gradients to the optimizer's parameters."""
    thrown_away: int = 0
    """How many of them had their gradients cleared before the update."""
    all_but_last: bool = False
    """Each of those was cleared before the next backward pass."""
    one_batch: bool = False
    """The passes were over the same tensors, or a gradient of the input was asked for."""
    kept: bool = False
    """The gradients of the update before were still there and were added to."""
    old_share: float = 0.0
    """How much of the gradient came from earlier updates, where that was measured."""
    no_gradient: bool = False
    """Backward gave gradients, and at the update there were none."""
    replaced: bool = False
    """The program put other gradients in the place of those that backward gave."""
    rates: tuple[float, ...] = ()
    can_rise: tuple[bool, ...] = ()
    """For each group, whether a schedule or a base rate above zero could give it a rate later."""
    training: bool | None = None
    """Whether the model was in training mode in the passes with gradients."""
    in_eval: tuple[str, ...] = ()
    """Modules that act differently in training (dropout, batch normalisation) and were in evaluation mode."""
    dropout: bool | None = None
    """Whether any dropout of the model was on in those passes; None for a model without."""
    empty_statistics: tuple[str, ...] = ()
    """Batch normalisation in evaluation mode whose statistics were never updated."""
    unmoved_statistics: tuple[str, ...] = ()
    """Batch normalisation that was evaluated with statistics that its momentum of 0 never moved."""
    evaluations: int | None = 0
    """Passes without gradients, in training mode, over tensors that no pass with gradients was given. None where no
    call was seen at all, as before the update at which the recorder came to the loop."""
    distinct_evaluations: int = 0
    moves_statistics: bool = False
    """Those passes updated running statistics."""
    compares_itself: bool = False
    """The model was called on the same tensors with and without gradients."""
    idle_adapters: tuple[str, ...] = ()
    """Low-rank adapters that got no gradient although the layer they belong to ran; all of the model's, or none."""
    pulls: tuple[tuple[float, float], ...] = ()
    """For each micro-batch, how many of the model's predictions got a gradient, and the sum of its magnitudes."""
    loss: float | None = None
    grad_norm: float | None = None


@dataclass(slots=True)
class LoopRecord:
    """The updates of one optimizer, newest last, and what happened to the optimizer itself."""

    updates: deque[UpdateSeen] = field(default_factory=lambda: deque(maxlen=KEPT))
    count: int = 0
    dropped: bool = False
    """Whether dropout was on at an update before."""
    quiet_windows: int = 0
    """Updates before which no evaluation took place."""
    peak_rate: float = 0.0
    state_lost: str = ""
    """How the optimizer lost the state of an earlier one: a sentence, or nothing."""
    surely_lost: bool = False
    """Whether that cannot have been wanted."""
    narrowed: tuple[str, str] | None = None
    """The dtypes between which the optimizer's state was cast."""
    unmoved: tuple[str, ...] = ()
    """Weights that the optimizer's steps leave as they were, although they have a gradient and a rate."""
    sizes: list[GradientSize] = field(default_factory=list)
    """How the program changed the size of its gradients, at the first updates."""
    same_draws: str = ""
    """How the workers of a loader draw the same numbers: a sentence, or nothing."""
    same_noise: str = ""
    """How every batch has the same noise in it: a sentence, or nothing."""
    same_epochs: str = ""
    """How batches that are drawn at random came again in the next epoch: a sentence, or nothing."""
    same_rows: str = ""
    """How the same rows are drawn from a list that grows: a sentence, or nothing."""
    idle_schedule: str = ""
    """How a schedule moves the rates of an optimizer that is not stepped: a sentence, or nothing."""
    empty_clips: str = ""
    """How nothing was there whenever gradients were clipped: a sentence, or nothing."""
    few_drawn: str = ""
    """How a sampler can draw a few of the samples only: a sentence, or nothing."""
    by_class: str = ""
    """How the classes are delivered one after another: a sentence, or nothing."""
    rewritten: str = ""
    """How the data set writes into the samples that it keeps: a sentence, or nothing."""
    aliased: str = ""
    """How all rows of a batch are one sample: a sentence, or nothing."""
    same_memory: str = ""
    """How all entries of a list that batches are drawn from are one memory: a sentence, or nothing."""
    idle_average: str = ""
    """How averaged weights are used and were never updated: a sentence, or nothing."""
    never_raised: tuple[int, ...] = ()
    """Groups of weights as they were drawn, which had a rate of zero from the first update to the last."""
    replicas: str = ""
    """How replicas of a network drift apart: a sentence, or nothing."""
    constant: str = ""
    """How all inputs are one number: a sentence, or nothing."""
    not_loaded: str = ""
    """How a state was to be loaded, and nothing was: a sentence, or nothing."""
    repeated: str = ""
    """How the same batch is delivered again and again: a sentence, or nothing."""

    def add(self, update: UpdateSeen) -> None:
        self.updates.append(update)
        self.count += 1
        self.dropped |= update.dropout is True
        self.quiet_windows += update.evaluations == 0
        self.peak_rate = max(self.peak_rate, *update.rates, 0.0)

    @property
    def last(self) -> UpdateSeen:
        return self.updates[-1]

    def same_loss(self, count: int = 4) -> bool:
        """Whether the last updates had the same loss, bit for bit."""
        losses = [update.loss for update in self.updates if update.loss is not None][-count:]
        return len(losses) == count and len(set(losses)) == 1 and math.isfinite(losses[0])

    def recent(self, count: int) -> list[UpdateSeen]:
        """The last updates, or none where there are not yet so many."""
        return list(self.updates)[-count:] if len(self.updates) >= count else []
