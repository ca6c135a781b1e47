"""One symptom a file. `ALL` is what `judge` runs; each module has RULE, detect, SPECIMEN and NEAR_MISS."""

from __future__ import annotations

from types import ModuleType

from .loss_scale import clipped_before_unscale, loss_scale_collapse, loss_scale_overflow
from .non_finite import (
    non_finite_buffer,
    non_finite_gradient,
    non_finite_input,
    non_finite_loss,
    non_finite_optimizer_state,
    non_finite_parameter,
    non_finite_term,
    norm_overflow,
)
from .progress import divergence, low_success_rate, stalled_run
from .spikes import gradient_above_limit, gradient_spike, loss_spike

OF_THE_STEP: tuple[ModuleType, ...] = (
    non_finite_loss,
    non_finite_term,
    non_finite_gradient,
    norm_overflow,
    non_finite_parameter,
    non_finite_optimizer_state,
    non_finite_buffer,
    non_finite_input,
    gradient_spike,
    loss_spike,
    gradient_above_limit,
    loss_scale_collapse,
    loss_scale_overflow,
)
"""Judge the numbers of this step alone: none can speak where the step is finite and under its limits."""

OF_THE_RUN: tuple[ModuleType, ...] = (divergence, stalled_run, low_success_rate, clipped_before_unscale)
"""Judge the stretch of steps behind it."""

ALL = OF_THE_STEP + OF_THE_RUN
