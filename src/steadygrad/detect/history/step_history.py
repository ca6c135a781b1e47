"""What the settled steps looked like: the memory the detectors judge by.

Only finite numbers of steps that were applied enter a statistic, so the history survives what it watches for: a NaN
costs the step it came with and nothing after it. Plain Python floats on the host; no tensor, no synchronisation.
An `admit` and a `limits` together cost a few microseconds.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from ...policy import Policy
from ...records import Reading
from .running_level import RunningLevel

_EARLY = 3
_RECENT = 16
_QUARTILES = 1.349  # the quartiles of a normal distribution are so many sigmas apart
_FEW = 24.0
_OUTCOMES = 256


@dataclass(frozen=True, slots=True)
class RefusalLimits:
    """What the device compares the coming step with. Infinity: no limit, or not yet."""

    grad_norm: float = math.inf
    loss: float = math.inf


class History:
    """Memory of settled steps. `admit` every settled step in order; `limits` is what the next one must stay below."""

    def __init__(self) -> None:
        self.norm = RunningLevel()
        self.loss = RunningLevel()
        self.settled = 0
        self.applied = 0
        self.first_losses: list[float] = []
        self.first_norms: list[float] = []
        self.recent_losses: deque[float] = deque(maxlen=_RECENT)
        self.recent_norms: deque[float] = deque(maxlen=_RECENT)
        self.recent_scaled_norms: deque[float] = deque(maxlen=_RECENT)
        self.best_level: float | None = None
        self.best_step: int | None = None
        self.best_spread = 0.0
        self.loss_level: float | None = None
        self.steps_without_update = 0
        self.steps_with_zero_gradient = 0
        self.overflow_streak = 0
        self.highest_scale = 0.0
        self._outcomes: deque[bool] = deque(maxlen=_OUTCOMES)
        self._cached: tuple[Policy, float, RefusalLimits] | None = None

    def admit(self, reading: Reading, applied: bool) -> None:
        """Take in one settled step. Non-finite numbers and refused steps enter no statistic of what is normal."""
        self._cached = None
        self.settled += 1
        loss_is_finite, norm_is_finite = math.isfinite(reading.loss), math.isfinite(reading.grad_norm)
        scale = reading.loss_scale
        if scale is not None and math.isfinite(scale):
            self.highest_scale = max(self.highest_scale, scale)
        if not applied:
            self.steps_without_update += 1
            if scale is not None and loss_is_finite and not norm_is_finite:
                # The loss scale was too large: normal life in fp16, no mark against the run.
                self.overflow_streak += 1
            else:
                self._outcomes.append(False)
            if loss_is_finite and norm_is_finite:
                self._refused(reading)
            return
        self._outcomes.append(True)
        self.applied += 1
        self.steps_without_update = self.overflow_streak = 0
        if norm_is_finite:
            self._admit_norm(reading.grad_norm, scale)
        if loss_is_finite:
            self._admit_loss(reading.loss, reading.step)

    def _refused(self, reading: Reading) -> None:
        norm_limit, loss_limit = reading.grad_norm_limit, reading.loss_limit
        if reading.grad_norm > 0 and (norm_limit is None or reading.grad_norm > norm_limit):
            self.norm.refuse(math.log(reading.grad_norm))
        if loss_limit is not None and reading.loss > loss_limit:
            self.loss.refuse(reading.loss)

    def _admit_norm(self, norm: float, scale: float | None) -> None:
        if norm <= 0:
            # An exact zero says that this batch had nothing to teach; it says nothing of the level of the others.
            self.steps_with_zero_gradient += 1
            return
        self.steps_with_zero_gradient = 0
        self.norm.admit(math.log(norm))
        self.recent_norms.append(norm)
        self.recent_scaled_norms.append(norm * scale if scale is not None else norm)
        if len(self.first_norms) < _EARLY:
            self.first_norms.append(norm)

    def _admit_loss(self, loss: float, step: int) -> None:
        self.loss.admit(loss)
        self.recent_losses.append(loss)
        if len(self.first_losses) < _EARLY:
            self.first_losses.append(loss)
        if len(self.recent_losses) == _RECENT:
            ordered = sorted(self.recent_losses)
            self.loss_level = level = 0.5 * (ordered[7] + ordered[8])
            if self.best_level is None or level < self.best_level:
                # The spread of these few, not of the long window: that one also holds the way down.
                self.best_spread = (ordered[11] - ordered[4]) / _QUARTILES
                self.best_level, self.best_step = level, step

    def limits(self, policy: Policy, floor: float = 0.0) -> RefusalLimits:
        """What the next step's numbers are compared with on the device: above it the update is refused.

        `floor` is the user's own clip: a norm that would not even be clipped is never a spike.
        """
        if self._cached is not None and self._cached[0] is policy and self._cached[1] == floor:
            return self._cached[2]
        limits = self.spike_limits(policy, floor) if policy.refuse_spikes else RefusalLimits()
        if policy.max_norm_to_apply is not None:
            limits = RefusalLimits(min(limits.grad_norm, policy.max_norm_to_apply), limits.loss)
        self._cached = (policy, floor, limits)
        return limits

    def spike_limits(self, policy: Policy, floor: float = 0.0) -> RefusalLimits:
        """What a finite number must exceed to be called a spike, whether or not spikes are refused."""
        return RefusalLimits(max(self._norm_limit(policy), floor), self._loss_limit(policy))

    def uneventful(self, reading: Reading, policy: Policy) -> bool:
        """Whether no detector of the run can have something to say: every update is applied, none has a gradient of
        zero, there is no loss scale, and the loss is near its best."""
        if self.steps_without_update or self.steps_with_zero_gradient or reading.loss_scale is not None:
            return False
        level, best = self.loss_level, self.best_level
        if level is not None and best is not None and level - best > abs(best):
            return False
        return not self.recent_losses or self.recent_losses[-1] <= policy.runaway_ratio * abs(self.first_losses[0])

    def seen_as_high(self, reading: Reading, policy: Policy) -> bool:
        """Whether its loss and norm are no higher than one that was applied lately: then neither is a spike, and the
        limits need not be computed. False where spikes are refused, or too little was seen."""
        norms, losses = self.norm.ordered, self.loss.ordered
        if policy.refuse_spikes or policy.spike_over_max < 1 or not norms or not losses or reading.grad_norm <= 0:
            return False
        return math.log(reading.grad_norm) <= norms[-1] and reading.loss <= losses[-1]

    def limits_of(self, reading: Reading, policy: Policy) -> RefusalLimits:
        """The limits above which this reading is a spike. Where spikes are refused these are the limits that were in
        force on the device when its step ran, so that host and device agree; elsewhere those of the history."""
        norm, loss = reading.grad_norm_limit, reading.loss_limit
        if not (policy.acts and policy.refuse_spikes):
            return self.spike_limits(policy)
        if norm is not None and loss is not None:
            return RefusalLimits(norm, loss)
        limits = self.limits(policy)
        return RefusalLimits(limits.grad_norm if norm is None else norm, limits.loss if loss is None else loss)

    def _norm_limit(self, policy: Policy) -> float:
        level, count = self.norm, len(self.norm)
        if count < policy.spike_min_samples:
            return math.inf
        # Few samples know little of the tail: the fewer, the further away the limit.
        widening = 1.0 + _FEW / count
        middle = level.median()
        log_limit = max(
            middle + policy.spike_sigmas * level.spread(),
            middle + math.log(policy.spike_ratio * widening),
            level.highest() + math.log(policy.spike_over_max) + 0.5 * math.log(widening),
        )
        if (new_level := level.accepted(policy)) is not None:
            log_limit = max(log_limit, new_level + math.log(policy.spike_over_max))
        return math.exp(log_limit) if log_limit < 700 else math.inf

    def _loss_limit(self, policy: Policy) -> float:
        """Far more cautious than the norm's: a hard batch has a high loss and is no harm. Refused is only what is
        above everything seen, above where the run began, and absurd by the window's own measure."""
        level, count = self.loss, len(self.loss)
        if not policy.judge_loss_level or count < policy.spike_min_samples:
            return math.inf
        widening = 1.0 + _FEW / count
        middle, highest = level.median(), level.highest()
        began = max(self.first_losses)
        limit = max(
            middle + 3.0 * policy.spike_sigmas * level.spread(),
            middle + policy.spike_ratio * widening * abs(middle),
            highest + policy.spike_over_max * widening * (highest - middle),
            began + policy.spike_over_max * abs(began),
        )
        if (lowest := level.lowest()) < 0:
            # A loss that crosses zero has no size but its reach to both sides.
            limit = max(limit, highest + policy.spike_over_max * widening * (highest - lowest))
        if (new_level := level.accepted(policy)) is not None:
            limit = max(limit, new_level + policy.spike_over_max * abs(new_level))
        return limit

    def success(self, window: int) -> tuple[int, int]:
        """How many of the last `window` steps were applied, and of how many; those the loss scale refused are left
        out."""
        counted = min(window, len(self._outcomes))
        if counted == len(self._outcomes):
            return sum(self._outcomes), counted
        return sum(list(self._outcomes)[-counted:]), counted

    def rewind(self) -> None:
        """Call after a rollback: what was seen last belongs to steps that no longer happened."""
        self._cached = None
        self.recent_losses.clear()
        self.recent_norms.clear()
        self.recent_scaled_norms.clear()
        self.loss_level = None
        self.steps_without_update = self.steps_with_zero_gradient = self.overflow_streak = 0

    def to_plain(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        data: dict[str, Any] = {
            name: list(value) if isinstance(value, deque | list) else value
            for name, value in vars(self).items()
            if name not in ("norm", "loss", "_cached")
        }
        return {**data, "norm": self.norm.to_plain(), "loss": self.loss.to_plain()}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> History:
        """The history `to_plain` made this from; names it does not know are ignored."""
        history = cls()
        history.norm, history.loss = RunningLevel.from_plain(data["norm"]), RunningLevel.from_plain(data["loss"])
        for name, value in vars(history).items():
            if name in ("norm", "loss", "_cached") or name not in data:
                continue
            if isinstance(value, deque):
                value.extend(data[name])
            else:
                setattr(history, name, list(data[name]) if isinstance(value, list) else data[name])
        return history
