"""sg.attach(trainer): a transformers or TRL trainer, guarded at full strength.

Each `train()` call has its own LoopGuard, made when the trainer has its optimizer, its schedule and a resumed
checkpoint ready; `trainer_hooks.py` says where it listens. A refused step holds the schedule; the trainer's
`global_step` still counts it. One host read a step.
"""

from __future__ import annotations

import logging
import weakref
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...policy import Policy
from ...records import Finding, Incident
from ...records.errors import SteadyError, UsageError
from ..loops.loop_guard import LoopGuard
from ..loops.patch_barrier import report
from ..loops.patching import Patches
from . import version_support
from .micro_batch_replay import MicroBatchReplay
from .observed_trainer import ObservedTrainer
from .trainer_checkpoints import CheckpointGate
from .trainer_hooks import TrainerHooks
from .weight_callbacks import hold_followers

logger = logging.getLogger("steadygrad")
_ATTACHED: weakref.WeakKeyDictionary[Any, weakref.ref[TrainerGuard]] = weakref.WeakKeyDictionary()


class TrainerGuard:
    """What `sg.attach(trainer)` returns. Works from the next optimizer step on, and through every later `train()`.

    Args:
        trainer: a transformers.Trainer or one built on it (SFT, GRPO, RLOO, DPO, KTO, reward, distillation).
        log_metrics: whether the trainer's log gets keys under `steady/` (`steady/skipped`, `steady/refused_fraction`).
        run_dir, policy, diagnose, capsule, capsule_bytes, snapshots, batch_key, extra_state, notify: as for `sg.Guard`.
    """

    def __init__(
        self, trainer: Any, *, policy: str | Policy = "balanced", log_metrics: bool = False, **options: Any
    ) -> None:
        version_support.check_versions()
        version_support.check_options(options)
        known = _ATTACHED.get(trainer)
        if known is not None and known() is not None:
            raise UsageError(
                f"This {type(trainer).__name__} is already attached. Two guards on one trainer would both refuse and "
                "both count; close() the first one."
            )
        self.policy = Policy.named(policy)
        if version_support.centres_its_rewards(trainer):
            self.policy = self.policy.but(judge_loss_level=False)
        self.trainer = trainer
        self._options, self._log_metrics = options, log_metrics
        self._patches, self._wired = Patches(self.failed), Patches(self.failed)
        self._loop: LoopGuard | None = None
        self._watch: ObservedTrainer | None = None
        # Of former train() calls only this is kept: a loop holds snapshots of the whole model.
        self._past_incidents: list[Incident] = []
        self._past_vitals: list[Finding] = []
        self._last_counts: dict[str, Any] = {"steps": 0, "applied": 0, "skipped": 0}
        self._replay = MicroBatchReplay(trainer)
        self._gate = CheckpointGate(trainer, self._patches, lambda: self._loop)
        self._callback = version_support.lifecycle_callback(self._train_begins, self._train_ends, self.failed)
        trainer.add_callback(self._callback)
        _ATTACHED[trainer] = weakref.ref(self)
        if version_support.is_training(trainer):
            self._connect(version_support.training_model(trainer))

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last, over all `train()` calls."""
        now = self._loop or self._watch
        return [*self._past_incidents, *(now.incidents if now is not None else [])]

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks."""
        return [*self._past_vitals, *(self._loop.vitals if self._loop is not None else [])]

    @property
    def only_watching(self) -> str | None:
        """Why nothing can be refused in this trainer, or None where everything works."""
        return self._watch.why if self._watch is not None else None

    def summary(self) -> dict[str, Any]:
        """The counts of the `train()` call under way or last, as `sg.Guard.summary` has them."""
        now = self._loop or self._watch
        counts = now.summary() if now is not None else self._last_counts
        return {**counts, "checkpoints_refused": list(self._gate.refused), "only_watching": self.only_watching}

    def settle(self) -> None:
        """Every step was judged before it was applied, so there is nothing to wait for."""

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

    def failed(self, fault: Exception) -> None:
        """A fault of ours in the wiring: the guard of this `train()` stands down as if it were its own."""
        (self._loop.failed if self._loop is not None else report)(fault)

    # -- one train() call

    def _train_begins(self, model: Any) -> None:
        """Optimizer, schedule and a resumed checkpoint are there: begin, or begin anew."""
        self._disconnect()
        try:
            self._connect(version_support.training_model(self.trainer))
        except SteadyError:
            raise
        except Exception as fault:
            if version_support.world_size(self.trainer) > 1:
                raise  # going on without a guard on one rank would leave the others waiting for it
            self._disconnect()
            logger.error(
                "internal error of steadygrad IE602 in attach (%s: %s); training goes on without a guard.",
                type(fault).__name__, fault, exc_info=fault,
            )  # fmt: skip

    def _train_ends(self) -> None:
        if self._loop is not None:
            self._loop.training_ended()

    def _connect(self, model: nn.Module) -> None:
        trainer, options = self.trainer, dict(self._options)
        why = version_support.why_only_watch(trainer)
        if why is not None:
            logger.warning("%s, so steadygrad only watches this run: it records and refuses nothing.", why)
            self._watch = ObservedTrainer(trainer, self._wired, why, run_dir=options.get("run_dir"))
            return
        schedule = trainer.lr_scheduler
        followed = isinstance(schedule, LRScheduler) and not isinstance(schedule, ReduceLROnPlateau)
        self._loop = loop = LoopGuard(
            model,
            version_support.inner_optimizer(trainer.optimizer),
            self._replay,
            policy=self.policy,
            max_grad_norm=trainer.args.max_grad_norm or None,
            scheduler=schedule if followed else None,
            scaler=version_support.scaler_of(trainer),
            precision_shown=str(getattr(trainer.accelerator, "mixed_precision", None) or "the loop's own"),
            **options,
        )
        loop.preserve(trainer)
        self._gate.resume(loop)
        TrainerHooks(trainer, loop, self._replay, self._wired, log_metrics=self._log_metrics)
        hold_followers(trainer, loop, self._wired)

    def _disconnect(self) -> None:
        self._wired.undo()
        if self._loop is not None:
            self._past_incidents += self._loop.incidents
            self._past_vitals += self._loop.vitals
            self._loop.close()
            self._last_counts = self._loop.summary()
            version_support.clear_skip(self.trainer)
            self._loop = None
        if self._watch is not None:
            self._past_incidents += self._watch.incidents
            self._last_counts = self._watch.summary()
            self._watch.close()
            self._watch = None
