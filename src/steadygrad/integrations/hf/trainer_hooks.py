"""The five calls of a LoopGuard in the loop of one trainer, for one `train()` call.

`begin` and `seen` around `training_step`, with the inputs taken where `compute_loss` is given them; `before_clip` at
`accelerator.clip_grad_norm_`, whose pass over the gradients it replaces; `commit` at the optimizer's step. A refused
step sets Accelerate's own "was skipped" flag, which holds the schedule. One host read a step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...detect.gradient_norms import clip_exact
from ...detect.tensors.foreign_objects import isinstance
from ..loops.loop_guard import LoopGuard
from ..loops.patching import Patches
from . import version_support
from .micro_batch_replay import MicroBatchReplay, captured, exact_factor, plain_values, window_size
from .trainer_log import TruthfulLog

logger = logging.getLogger("steadygrad")


class TrainerHooks:
    """Listens to one trainer's step and tells a LoopGuard where it is."""

    def __init__(
        self, trainer: Any, loop: LoopGuard, replay: MicroBatchReplay, patches: Patches, *, log_metrics: bool = False
    ) -> None:
        self.trainer = trainer
        self._loop, self._replay = loop, replay
        self._log = TruthfulLog(trainer, patches, loop, log_metrics=log_metrics)
        self._batch: dict[str, Any] | None = None
        self._in_step = self._begun = self._window_open = self._measured = self._unscaled = False
        self._can_replay = True
        self._last_loss: Any = None
        self._soft: dict[str, Any] = {}
        self._moved: set[str] = set()
        self._num_losses = self._num_backwards = 0
        patches.around(trainer, "training_step", self._training_step)
        patches.around(trainer, "compute_loss", self._compute_loss)
        patches.around(trainer.accelerator, "backward", self._backward)
        patches.around(trainer.accelerator, "clip_grad_norm_", self._clip, listed=True)
        patches.around(trainer.accelerator, "unscale_gradients", self._unscale)
        patches.around(trainer.optimizer, "step", self._step, may=self._may_step)

    def _looks_away(self) -> bool:
        """While a step is being run again, by the guard or by `steady replay`."""
        return self._replay.active or self._loop.busy

    # -- a micro-batch

    def _training_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Around the trainer's forward and backward. Does not sync."""
        loop = self._loop
        if self._looks_away():
            return original(model, inputs, *args, **kwargs)
        if not self._window_open:
            self._window_open, self._measured, self._unscaled = True, False, False
            loop.accumulate = self._replay.factor = exact_factor(window_size(self.trainer))
            self._log.begin_window()
            self._soft, self._moved = plain_values(self.trainer), set()
        self._in_step, self._begun, self._batch = True, False, None
        self._num_losses = self._num_backwards = 0
        if not version_support.shares_a_generation(self.trainer):
            # What is sampled for this window alone goes with it, so its random numbers are given back with it too.
            loop.begin()
            self._begun = True
        try:
            loss = original(model, inputs, *args, **kwargs)
        finally:
            self._in_step = False
        if self._num_losses and not self._num_backwards:
            loop.left_out(self._last_loss, self._batch)
        elif isinstance(loss, Tensor) and self._begun:
            shown = loss.detach() if self._replay.factor == 1 else loss.detach() * self._replay.factor
            loop.seen(self._batch if self._is_replayable() else None, {"loss": shown})
        return loss

    def _compute_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Where the trainer has its inputs ready: generated, moved, and not yet taken apart by the loss."""
        loop = self._loop
        if self._looks_away() or not self._in_step:
            return original(model, inputs, *args, **kwargs)
        num_items = kwargs.get("num_items_in_batch", args[1] if len(args) > 1 else None)
        with_rng = self._begun and version_support.generates(self.trainer)
        with loop._engine.barrier("trainer", None):
            self._batch = captured(self.trainer, inputs, num_items, with_rng=with_rng)
        if not self._begun:
            loop.begin(self._batch)
            self._begun = True
        self._num_losses += 1
        before = plain_values(self.trainer)
        answer = original(model, inputs, *args, **kwargs)
        self._last_loss = answer[0] if isinstance(answer, tuple) else answer
        after = vars(self.trainer)
        self._moved |= {name for name, value in before.items() if after.get(name) is not value}
        return answer

    def _backward(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._num_backwards += 1
        return original(loss, *args, **kwargs)

    def _is_replayable(self) -> bool:
        """One loss and one backward a micro-batch: then running it again is running the trainer's own step again."""
        if (self._num_losses, self._num_backwards) != (1, 1) and self._can_replay:
            self._can_replay = False
            logger.warning(
                "%s.training_step computes %d losses and calls backward %d times, so a step cannot be run again: bad "
                "updates are refused, but not diagnosed, and a rollback does not run the batches since again.",
                type(self.trainer).__name__, self._num_losses, self._num_backwards,
            )  # fmt: skip
        return self._can_replay and self._batch is not None

    # -- an update

    def _clip(self, original: Callable[..., Any], parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        """Measure before clipping, and clip with what was measured: the same bits as torch's, in one pass less."""
        loop = self._loop
        if self._looks_away() or self._measured or not self._window_open:
            return original(parameters, max_norm, *args, **kwargs)
        parameters = list(parameters)
        self.trainer.accelerator.unscale_gradients()
        loop.before_clip()
        self._measured = True
        gradients = loop._measured[0] if loop._measured is not None else None
        plain = not args and kwargs.get("norm_type", 2) == 2 and loop._engine.program.unscaled
        if gradients is None or not plain or not gradients.alike or not _same(parameters, gradients.tensors):
            return original(parameters, max_norm, *args, **kwargs)
        if not math.isinf(max_norm):
            clip_exact(gradients, float(max_norm))
        return gradients.total

    def _unscale(self, original: Callable[..., Any], optimizer: Any = None) -> Any:
        """Unscaling twice raises, and measuring comes before accelerate's own turn to do it."""
        if self._unscaled:
            return None
        self._unscaled = self._window_open
        return original(optimizer)

    def _may_step(self, *args: Any, **kwargs: Any) -> bool:
        """Whether an update may be made that the guard failed to judge; if not, the trainer's schedule is held."""
        version_support.mark_skip(self.trainer, skipped=not self._loop.may_update())
        return self._loop.landed

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The optimizer's turn. One host read."""
        loop = self._loop
        if self._looks_away() or not self.trainer.accelerator.sync_gradients:
            return original(*args, **kwargs)
        landed = False
        try:
            landed = loop.commit(lambda: original(*args, **kwargs))
        finally:
            self._window_open = self._measured = self._unscaled = False
            with loop._engine.barrier("trainer", None):
                self._log.end_window(landed=landed, loss=self._step_loss())
                if not landed:
                    self._leave_no_trace()
        version_support.mark_skip(self.trainer, skipped=not landed)
        return None

    def _step_loss(self) -> float | None:
        """What the window's loss was, in the trainer's own size; it was read with the commit."""
        outcome = self._loop.outcome
        if outcome is None or outcome.loss is None:
            return None
        return outcome.loss * window_size(self.trainer) / self._replay.factor

    def _leave_no_trace(self) -> None:
        """What the refused window's losses moved in the trainer itself, such as an entropy controller."""
        for name in self._moved:
            if name in self._soft:
                setattr(self.trainer, name, self._soft[name])
        scaler = version_support.scaler_of(self.trainer)
        if scaler is not None:
            scaler._per_optimizer_states.clear()


def _same(parameters: list[Any], measured: list[Tensor]) -> bool:
    """Whether exactly these parameters' gradients were measured."""
    found = [p.grad for p in parameters if p.grad is not None]
    return len(found) == len(measured) and all(one is other for one, other in zip(found, measured, strict=True))
