"""The truth in a trainer's log: the loss as it was, and no NaN that never ends. A healthy log is left as it is.

Trainer sums losses into `_tr_loss`. For a NaN it adds a plausible number (`logging_nan_inf_filter`), so a run that is
dead prints a healthy curve; without that filter one NaN stays in the sum for ever. Here a refused window is taken out
of the sum again, with or without the filter, and the interval that held it shows the loss that was really seen. Keys
under `steady/` are added only where they were asked for (`log_metrics=True`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ..loops.patching import Patches

if TYPE_CHECKING:
    from ..loops.loop_guard import LoopGuard

SKIPPED, REFUSED, APPLIED_LOSS = "steady/skipped", "steady/refused_fraction", "steady/loss"


class TruthfulLog:
    """Follows the windows of one `train()` call and corrects the log of refused ones. Adds no host read to a step."""

    def __init__(self, trainer: Any, patches: Patches, loop: LoopGuard, *, log_metrics: bool = False) -> None:
        self._trainer = trainer
        self._log_metrics = log_metrics
        self._engine = loop._engine
        self._sum_before: Tensor | None = None
        self._refused_loss = 0.0
        self._steps = self._refused = 0
        self._all_steps = self._all_refused = 0
        patches.around(trainer, "log", self._log)
        if hasattr(trainer, "_finalize_training"):
            patches.around(trainer, "_finalize_training", self._finalize)

    def begin_window(self) -> None:
        """Before a window's first micro-batch: what the sum was. Allocates one number."""
        total = getattr(self._trainer, "_tr_loss", None)
        self._sum_before = total.clone() if isinstance(total, Tensor) else None

    def end_window(self, *, landed: bool, loss: float | None) -> None:
        """After the optimizer's turn, with the loss all ranks agreed on. A refused window leaves the trainer's sum."""
        self._steps += 1
        self._all_steps += 1
        if landed:
            return
        self._refused += 1
        self._all_refused += 1
        if self._sum_before is not None and isinstance(getattr(self._trainer, "_tr_loss", None), Tensor):
            self._trainer._tr_loss.copy_(self._sum_before)
        self._refused_loss += math.nan if loss is None else loss

    def _log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        if "loss" in logs and self._steps:
            with self._engine.barrier("trainer", None):
                self._correct(logs)
            self._steps = self._refused = 0
            self._refused_loss = 0.0
        return original(logs, *args, **kwargs)

    def _correct(self, logs: dict[str, float]) -> None:
        if self._log_metrics:
            logs[SKIPPED] = self._engine.log.ledger.skipped
            logs[REFUSED] = self._refused / self._steps
        if not self._refused:
            return
        applied_sum = logs["loss"] * self._steps
        logs["loss"] = (applied_sum + self._refused_loss) / self._steps
        if self._log_metrics and self._steps > self._refused:
            logs[APPLIED_LOSS] = applied_sum / (self._steps - self._refused)

    def _finalize(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`train_loss` is the mean over the steps that were trained on; the trainer divides by all of them."""
        landed = self._all_steps - self._all_refused
        if self._all_refused and landed:
            factor = self._all_steps / landed
            self._trainer._total_loss_scalar *= factor
            self._trainer._tr_loss *= factor
        return original(*args, **kwargs)


def is_finite_metric(value: Any) -> bool:
    """Whether a metric can be the best one so far. NaN compares false with everything, but an infinity does not."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError):
        return True
