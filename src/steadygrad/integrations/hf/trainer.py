"""sg.attach(trainer): a transformers or TRL trainer, guarded at full strength.

Where the five calls of a LoopGuard go: `begin` and `seen` around `training_step`, with the inputs taken where
`compute_loss` is given them; `before_clip` at `accelerator.clip_grad_norm_`, whose pass over the gradients it
replaces; `commit` at the optimizer's step. A refused step sets Accelerate's own "was skipped" flag, which holds the
schedule; the trainer's `global_step` still counts it. One host read a step, in place of the one that
`logging_nan_inf_filter` costs.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ...act.policy import Policy
from ...errors import UsageError
from ...records import Finding, Incident
from ...watch.gradients import clip_exact
from ..loop import LoopGuard
from . import support
from .checkpoints import CheckpointGate
from .logs import TruthfulLog
from .patches import Patches
from .replay import Replay, captured, exact_factor, plain_values, window_size
from .watching import TrainerWatch

logger = logging.getLogger("steadygrad")
_ATTACHED: weakref.WeakKeyDictionary[Any, weakref.ref[TrainerGuard]] = weakref.WeakKeyDictionary()


class TrainerGuard:
    """What `sg.attach(trainer)` returns. Works from the next optimizer step on, and through every later `train()`.

    Args:
        trainer: a transformers.Trainer or one built on it (SFT, GRPO, RLOO, DPO, KTO, reward, distillation).
        run_dir, policy, diagnose, capsule, capsule_bytes, snapshots, batch_key, extra_state: as for `sg.Guard`.
    """

    def __init__(self, trainer: Any, *, policy: str | Policy = "balanced", **options: Any) -> None:
        support.check_versions()
        support.check_options(options)
        known = _ATTACHED.get(trainer)
        if known is not None and known() is not None:
            raise UsageError(
                f"This {type(trainer).__name__} is already attached. Two guards on one trainer would both refuse and "
                "both count; close() the first one."
            )
        self.policy = Policy.named(policy)
        self.trainer = trainer
        self._options = options
        self._patches, self._wired = Patches(), Patches()
        self._loop: LoopGuard | None = None
        self._watch: TrainerWatch | None = None
        self._log: TruthfulLog | None = None
        self._past: list[LoopGuard] = []
        self._replay = Replay(trainer)
        self._batch: dict[str, Any] | None = None
        self._in_step = self._begun = self._window_open = self._measured = self._unscaled = False
        self._can_replay = True
        self._soft: dict[str, Any] = {}
        self._moved: set[str] = set()
        self._counted: tuple[int, int] = (0, 0)
        self._gate = CheckpointGate(trainer, self._patches, lambda: self._loop)
        self._callback = support.lifecycle_callback(self._train_begins, self._train_ends)
        trainer.add_callback(self._callback)
        if trainer.args.logging_nan_inf_filter and support.keeps_its_sum(trainer):
            self._patches.set(trainer.args, "logging_nan_inf_filter", False)
            logger.warning(
                "attached to %s; logging_nan_inf_filter is off while attached, because it prints a plausible loss for "
                "a step that was NaN.", type(trainer).__name__,
            )  # fmt: skip
        _ATTACHED[trainer] = weakref.ref(self)
        if support.is_training(trainer):
            self._connect(support.training_model(trainer))

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last, over all `train()` calls."""
        found = [incident for loop in self._loops() for incident in loop.incidents]
        return found + (list(self._watch.incidents) if self._watch is not None else [])

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks."""
        return [finding for loop in self._loops() for finding in loop.vitals]

    @property
    def only_watching(self) -> str | None:
        """Why nothing can be refused in this trainer, or None where everything works."""
        return self._watch.why if self._watch is not None else None

    def summary(self) -> dict[str, Any]:
        """The counts of the `train()` call under way or last, as `sg.Guard.summary` has them."""
        current = self._loop or (self._past[-1] if self._past else None)
        if self._watch is not None:
            counts = self._watch.summary()
        else:
            counts = current.summary() if current is not None else {"steps": 0, "applied": 0, "skipped": 0}
        return {**counts, "checkpoints_refused": list(self._gate.refused), "only_watching": self.only_watching}

    def settle(self) -> None:
        """Every step was judged before it landed, so there is nothing to wait for."""

    def close(self) -> None:
        """Take everything off the trainer again and close the journal. Safe to call twice."""
        self._disconnect()
        self._patches.undo()
        if _ATTACHED.pop(self.trainer, None) is not None:
            self.trainer.remove_callback(self._callback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- one train() call

    def _train_begins(self, model: Any) -> None:
        """Optimizer, schedule and a resumed checkpoint are there: begin, or begin anew."""
        self._disconnect()
        self._connect(support.training_model(self.trainer))

    def _train_ends(self) -> None:
        if self._loop is not None:
            self._loop.settle()

    def _connect(self, model: nn.Module) -> None:
        trainer, options = self.trainer, dict(self._options)
        why = support.why_only_watch(trainer)
        if why is not None:
            logger.warning("%s, so steadygrad only watches this run: it records and refuses nothing.", why)
            self._watch = TrainerWatch(trainer, self._wired, why, run_dir=options.get("run_dir"))
            return
        accelerated = trainer.optimizer
        schedule = trainer.lr_scheduler
        followed = isinstance(schedule, LRScheduler) and not isinstance(schedule, ReduceLROnPlateau)
        self._loop = loop = LoopGuard(
            model,
            support.inner_optimizer(accelerated),
            self._replay,
            policy=self.policy,
            max_grad_norm=trainer.args.max_grad_norm or None,
            scheduler=schedule if followed else None,
            scaler=support.scaler_of(trainer),
            precision_shown=str(getattr(trainer.accelerator, "mixed_precision", None) or "the loop's own"),
            **options,
        )
        self._gate.resume(loop)
        self._log = TruthfulLog(trainer, self._wired, lambda: loop._engine.books.ledger.skipped)
        self._in_step = self._begun = self._window_open = self._measured = self._unscaled = False
        self._wired.wrap(trainer, "training_step", self._training_step)
        self._wired.wrap(trainer, "compute_loss", self._compute_loss)
        self._wired.wrap(trainer.accelerator, "backward", self._backward)
        self._wired.wrap(trainer.accelerator, "clip_grad_norm_", self._clip)
        self._wired.wrap(trainer.accelerator, "unscale_gradients", self._unscale)
        self._wired.wrap(accelerated, "step", self._step)

    def _disconnect(self) -> None:
        self._wired.undo()
        if self._loop is not None:
            self._past.append(self._loop)
            self._loop.close()
            support.clear_skip(self.trainer)
            self._loop = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _looks_away(self) -> bool:
        """While a step is being run again, by the guard or by `steady replay`."""
        return self._replay.active or (self._loop is not None and self._loop.busy)

    def _loops(self) -> list[LoopGuard]:
        return [*self._past, *([self._loop] if self._loop is not None else [])]

    # -- a micro-batch

    def _training_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Around the trainer's forward and backward. Does not sync."""
        loop, log = self._loop, self._log
        if loop is None or log is None or self._looks_away():
            return original(model, inputs, *args, **kwargs)
        if not self._window_open:
            self._window_open, self._measured, self._unscaled = True, False, False
            loop.accumulate = self._replay.factor = exact_factor(window_size(self.trainer))
            log.begin_window()
            self._soft, self._moved = plain_values(self.trainer), set()
        self._in_step, self._begun, self._batch, self._counted = True, False, None, (0, 0)
        if not support.shares_a_generation(self.trainer):
            # What is sampled for this window alone goes with it, so its random numbers are given back with it too.
            loop.begin()
            self._begun = True
        try:
            loss = original(model, inputs, *args, **kwargs)
        finally:
            self._in_step = False
        if isinstance(loss, Tensor) and self._begun:
            shown = loss.detach() if self._replay.factor == 1 else loss.detach() * self._replay.factor
            loop.seen(self._batch if self._is_replayable() else None, {"loss": shown})
        return loss

    def _compute_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Where the trainer has its inputs ready: generated, moved, and not yet taken apart by the loss."""
        loop = self._loop
        if loop is None or self._looks_away() or not self._in_step:
            return original(model, inputs, *args, **kwargs)
        num_items = kwargs.get("num_items_in_batch", args[1] if len(args) > 1 else None)
        if isinstance(inputs, Mapping) or hasattr(inputs, "items"):
            self._batch = captured(
                self.trainer, inputs, num_items, with_rng=self._begun and support.generates(self.trainer)
            )
        if not self._begun:
            loop.begin(self._batch)
            self._begun = True
        self._counted = (self._counted[0] + 1, self._counted[1])
        before = plain_values(self.trainer)
        answer = original(model, inputs, *args, **kwargs)
        after = vars(self.trainer)
        self._moved |= {name for name, value in before.items() if after.get(name) is not value}
        return answer

    def _backward(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._counted = (self._counted[0], self._counted[1] + 1)
        return original(loss, *args, **kwargs)

    def _is_replayable(self) -> bool:
        """One loss and one backward a micro-batch: then running it again is running the trainer's own step again."""
        if self._counted != (1, 1) and self._can_replay:
            self._can_replay = False
            logger.warning(
                "%s.training_step computes %d losses and calls backward %d times, so a step cannot be run again: bad "
                "updates are refused, but not diagnosed, and a rollback does not run the batches since again.",
                type(self.trainer).__name__, *self._counted,
            )  # fmt: skip
        return self._can_replay and self._batch is not None

    # -- an update

    def _clip(self, original: Callable[..., Any], parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        """Measure before clipping, and clip with what was measured: the same bits as torch's, in one pass less."""
        loop = self._loop
        if loop is None or self._looks_away() or self._measured or not self._window_open:
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

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The optimizer's turn. One host read."""
        loop, log = self._loop, self._log
        if loop is None or log is None or self._looks_away() or not self.trainer.accelerator.sync_gradients:
            return original(*args, **kwargs)
        landed = False
        try:
            landed = loop.commit(lambda: original(*args, **kwargs))
        finally:
            self._window_open = self._measured = self._unscaled = False
            log.end_window(landed=landed, loss=self._step_loss())
            if not landed:
                self._leave_no_trace()
        support.mark_skip(self.trainer, skipped=not landed)
        return None

    def _step_loss(self) -> float | None:
        """What the window's loss was, in the trainer's own size; it was read with the commit."""
        outcome = self._loop.outcome if self._loop is not None else None
        if outcome is None or outcome.loss is None:
            return None
        return outcome.loss * window_size(self.trainer) / self._replay.factor

    def _leave_no_trace(self) -> None:
        """What the refused window's losses moved in the trainer itself, such as an entropy controller."""
        for name in self._moved:
            if name in self._soft:
                setattr(self.trainer, name, self._soft[name])
        scaler = support.scaler_of(self.trainer)
        if scaler is not None:
            scaler._per_optimizer_states.clear()


def _same(parameters: list[Any], measured: list[Tensor]) -> bool:
    """Whether exactly these parameters' gradients were measured."""
    found = [p.grad for p in parameters if p.grad is not None]
    return len(found) == len(measured) and all(one is other for one, other in zip(found, measured, strict=True))
