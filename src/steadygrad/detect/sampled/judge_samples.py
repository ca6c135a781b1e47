"""All the judges of silent trouble. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from ...policy import Policy
from ...records import Finding
from .rules import (
    activation_range,
    gradient_underflow,
    ineffective_epsilon,
    loss_scale_running_out,
    lost_update,
    overflow_ahead,
    parameter_never_changes,
    parameter_not_in_optimizer,
    parameter_without_gradient,
    update_ratio_out_of_range,
)
from .sample_helpers import StepObservation

OF_THE_SETUP: tuple[ModuleType, ...] = (ineffective_epsilon,)
"""Known before the first step."""

OF_SAMPLED_STEPS: tuple[ModuleType, ...] = (
    gradient_underflow,
    lost_update,
    parameter_not_in_optimizer,
    parameter_without_gradient,
    parameter_never_changes,
    update_ratio_out_of_range,
    activation_range,
    overflow_ahead,
    loss_scale_running_out,
)

ALL = OF_THE_SETUP + OF_SAMPLED_STEPS


def judge_samplings(samplings: Sequence[StepObservation], policy: Policy) -> tuple[Finding, ...]:
    """What the samplings so far show, by code. Pure; only the set-up is judged by a sampling that was not measured."""
    if not samplings:
        return ()
    judges = ALL if samplings[-1].measured else OF_THE_SETUP
    found = [finding for module in judges if (finding := module.judge(samplings, policy)) is not None]
    return tuple(sorted(found, key=lambda finding: finding.code))
