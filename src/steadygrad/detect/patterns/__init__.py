"""Rules over steps that were observed one after another: what no single step shows.

One pattern a file; each module has RULE, suspect, SPECIMEN and NEAR_MISS. They read `StepObservation` alone, so they
run on whatever observed the steps; what was not observed gives no suspicion. Rules that a sampled step can judge too
have both forms in their file under `detect/sampled`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..observations.observed_run import ObservedRun, Suspicion
from ..sampled.rules import parameter_never_changes, parameter_not_in_optimizer, parameter_without_gradient
from . import (
    average_never_follows,
    gradient_changed_after_backward,
    gradient_scaled_wrongly,
    gradient_scrubbed,
    gradient_stopped,
    gradient_zeroed_by_hand,
    loss_jumps_and_stays,
    loss_replaced,
    non_finite_steps,
    step_not_repeatable,
    weight_changed_between_steps,
)

ALL: tuple[ModuleType, ...] = (
    average_never_follows,
    gradient_changed_after_backward,
    gradient_scaled_wrongly,
    gradient_scrubbed,
    gradient_stopped,
    gradient_zeroed_by_hand,
    loss_jumps_and_stays,
    loss_replaced,
    step_not_repeatable,
    weight_changed_between_steps,
)
"""The rules whose file is in this folder. `non_finite` puts the detectors of a live step to work."""

Pattern = Callable[[ObservedRun], Suspicion | None]

EACH_STEP: tuple[Pattern, ...] = (
    non_finite_steps.suspect_harm_of_a_buffer,
    gradient_scrubbed.suspect,
    loss_replaced.suspect,
    gradient_zeroed_by_hand.suspect,
    non_finite_steps.suspect_loss_or_gradient,
    gradient_changed_after_backward.suspect,
    non_finite_steps.suspect_state,
    weight_changed_between_steps.suspect,
    step_not_repeatable.suspect,
    parameter_not_in_optimizer.suspect,
    parameter_without_gradient.suspect,
    gradient_scaled_wrongly.suspect,
    parameter_never_changes.suspect,
    average_never_follows.suspect,
    loss_jumps_and_stays.suspect,
)
"""In the order in which they are asked after each step: what explains more comes first."""

AT_THE_END: tuple[Pattern, ...] = (
    non_finite_steps.suspect_buffer_in_doubt,
    loss_jumps_and_stays.conclude,
    parameter_never_changes.conclude,
    gradient_stopped.suspect,
)
