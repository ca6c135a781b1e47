"""A `lightning.Trainer`, guarded by a callback that the trainer carries.

Lightning runs training_step and backward inside `optimizer.step(closure)`. The callback tells the guard where each
batch begins and ends, and stands before the optimizer itself: it lets the closure run, looks at the gradients, and
lets the update happen or not. The schedule of a refused step is held, a checkpoint with non-finite weights is not
written, and with `log_metrics=True` what happened is logged under `steady/`. `trainer.global_step` counts a refused
step, because Lightning counts before it knows.

With manual optimization only the optimizers are guarded: the module decides itself when to step which of them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..detect.tensors.foreign_objects import isinstance
from ..engine.fault_barrier import boundary
from ..records import Finding, Incident
from ..records.errors import UsageError
from .loops.loader_samples import LoaderSamples
from .loops.loop_guard import LoopGuard
from .loops.patch_barrier import report, undo_all
from .loops.patching import Patches, wrap_method
from .optimizer.optimizer_guard import OptimizerGuard

logger = logging.getLogger("steadygrad")
_NOT_OURS = ("DeepSpeedStrategy", "XLAStrategy", "XLAFSDPStrategy", "FSDPStrategy")
_FOR_OPTIMIZERS = ("run_dir", "policy", "notify")


class LightningGuard(Callback):
    """What `sg.attach(trainer, ...)` returns. Options are those of LoopGuard, and `log_metrics`: whether the trainer's
    loggers get `steady/skipped` and `steady/refused_fraction`."""

    def __init__(self, trainer: Any, *, log_metrics: bool = False, **options: Any) -> None:
        self._trainer, self._options, self._log_metrics = trainer, options, log_metrics
        self._guard: LoopGuard | OptimizerGuard | None = None
        self._undo: list[Callable[[], Any]] = []
        self._samples: LoaderSamples | None = None
        self._not_named: list[Exception] = []
        self._batch: dict[str, Any] | None = None
        self._output: Any = None
        self._in_update = False

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return self._guard.incidents if self._guard is not None else []

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks."""
        return self._guard.vitals if isinstance(self._guard, LoopGuard) else []

    def summary(self) -> dict[str, Any]:
        """Steps, applied, skipped, success rate and what is in force; empty before the first fit."""
        return self._guard.summary() if self._guard is not None else {}

    def settle(self) -> None:
        """Settle a step that is judged late."""
        if self._guard is not None:
            self._guard.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take everything off the trainer and close the journal."""
        self._let_go()
        if self in self._trainer.callbacks:
            self._trainer.callbacks.remove(self)

    def failed(self, fault: Exception) -> None:
        """A fault of ours outside of the guard: it stands down as if it were its own."""
        (self._guard.failed if isinstance(self._guard, LoopGuard) else report)(fault)

    def _naming_failed(self, fault: Exception) -> None:
        """A batch is counted then. Before training starts there is no guard yet that could record it."""
        if isinstance(self._guard, LoopGuard):
            self._guard.not_named(fault)
        else:
            self._not_named.append(fault)

    # -- Lightning's hooks

    @boundary
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The loaders draw their first samples before training starts."""
        self._let_go()
        self._samples = LoaderSamples(self._naming_failed) if self._options.get("batch_key") is None else None

    @boundary
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers, schedules and precision exist now."""
        samples, self._samples = self._samples, None
        self._let_go()
        _refuse_strategy(trainer)
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            if samples is not None:
                samples.close()
            chosen = {key: value for key, value in self._options.items() if key in _FOR_OPTIMIZERS}
            logger.warning(
                "with manual optimization each optimizer is guarded on its own: bad updates are refused and journaled, "
                "not diagnosed"
            )
            self._guard = OptimizerGuard(trainer.optimizers, model=pl_module, **chosen)
            return
        configs = [c for c in trainer.lr_scheduler_configs if c.interval == "step" and c.frequency == 1]
        self._guard = guard = LoopGuard(
            _wrapped(trainer, pl_module),
            trainer.optimizers[0],
            self._again,
            scheduler=configs[0].scheduler if configs and not configs[0].reduce_on_plateau else None,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            accumulate=trainer.accumulate_grad_batches,
            max_grad_norm=_clips_to(trainer),
            precision_shown=str(trainer.precision),
            samples=samples,
            **self._options,
        )
        guard.preserve(pl_module)
        early, self._not_named = self._not_named, []
        for fault in early:
            self._naming_failed(fault)
        failed = guard.failed
        self._undo.append(wrap_method(trainer.strategy, "training_step", self._training_step, failed))
        self._undo.append(wrap_method(trainer.strategy, "batch_to_device", self._to_device, failed))
        self._undo.append(wrap_method(trainer.fit_loop.epoch_loop, "_update_learning_rates", self._schedule, failed))
        self._undo.append(wrap_method(trainer, "save_checkpoint", self._save, failed))
        scaler = guard.scaler
        if scaler is not None:
            self._undo.append(wrap_method(scaler, "step", self._scaler_step, failed, guard.may_update))
            self._undo.append(wrap_method(scaler, "update", self._scaler_update, failed))
        else:
            # On the object and not by a subclass: a schedule has already replaced the method there.
            patches = Patches(failed)
            patches.around(trainer.optimizers[0], "step", self._optimizer_step, may=self._may_step)
            self._undo.append(patches.undo)

    @boundary
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if isinstance(self._guard, LoopGuard):
            self._batch, self._output = None, None
            self._guard.accumulate = trainer.accumulate_grad_batches
            self._guard.begin(batch)

    @boundary
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        loss = _loss_of(self._output)
        if isinstance(self._guard, LoopGuard) and loss is not None:
            self._guard.seen(self._batch, {"loss": loss})

    @boundary
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if isinstance(self._guard, LoopGuard):
            self._guard.before_clip()

    @boundary
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self._log_metrics or self._guard is None or not trainer.loggers:
            return
        if trainer._logger_connector.should_update_logs:
            counts = self._guard.summary()
            skipped, applied = float(counts["skipped"]), counts["success_rate"]
            values = {"steady/skipped": skipped, "steady/refused_fraction": 1.0 - applied}
            pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._let_go()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._let_go()

    # -- what stands before Lightning's own methods

    def _training_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        guard = self._guard
        if isinstance(guard, LoopGuard) and not guard.busy:
            # training_step given the data iterator itself takes from it: that cannot be done twice.
            once_only = any(isinstance(value, Iterator) for value in (*args, *kwargs.values()))
            wrapper = self._trainer.strategy.model
            reduces = not isinstance(wrapper, DistributedDataParallel) or wrapper.require_backward_grad_sync
            self._batch = None if once_only else {"args": list(args), "kwargs": kwargs, "reduces": reduces}
            self._output = output
            if output is None:
                guard.left_out(None, self._batch)
        return output

    def _may_step(self, closure: Any = None, **_: Any) -> bool:
        """Whether an update may be made that was not judged. Its closure makes the gradients, so it is run first."""
        if closure is not None and not closure.made:
            with torch.enable_grad():
                closure()
        return not isinstance(self._guard, LoopGuard) or self._guard.may_update()

    def _optimizer_step(self, original: Callable[..., Any], closure: Any = None, **kwargs: Any) -> Any:
        """Lightning's closure runs forward and backward; torch would run it first thing, so it is run first here."""
        guard = self._guard
        if not isinstance(guard, LoopGuard) or guard.busy or self._in_update:
            return original(closure, **kwargs) if closure is not None else original(**kwargs)
        if closure is None:
            self._commit(guard, functools.partial(original, **kwargs))
            return None
        with torch.enable_grad():
            result = closure()
        self._commit(guard, lambda: original(_after_the_first(result, closure), **kwargs))
        return result

    def _scaler_step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        guard = self._guard
        if not isinstance(guard, LoopGuard) or guard.busy or self._in_update:
            return original(optimizer, *args, **kwargs)
        self._commit(guard, functools.partial(original, optimizer, *args, **kwargs))
        return None

    def _scaler_update(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """After a refused step the scale has been seen to already, and there is no inf check to update it from."""
        guard = self._guard
        if isinstance(guard, LoopGuard) and not guard.landed and not guard.busy:
            return None
        return original(*args, **kwargs)

    def _commit(self, guard: LoopGuard, update: Callable[[], Any]) -> None:
        def once() -> Any:
            self._in_update = True
            try:
                return update()
            finally:
                self._in_update = False

        guard.commit(once)

    def _schedule(self, original: Callable[..., Any], interval: str, **kwargs: Any) -> Any:
        if interval == "step" and isinstance(self._guard, LoopGuard) and not self._guard.landed:
            return None
        return original(interval=interval, **kwargs)

    def _to_device(self, original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        moved = original(batch, *args, **kwargs)
        if isinstance(self._guard, LoopGuard):
            self._guard.batch_moved(batch, moved)
        return moved

    def _save(self, original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._guard, LoopGuard) and (bad := self._guard.poisoned()):
            logger.warning(
                "the checkpoint %s was not written: %s is not finite, and a poisoned checkpoint looks like a good one",
                filepath,
                bad,
            )
            return None
        answer = original(filepath, *args, **kwargs)
        if isinstance(self._guard, LoopGuard):
            self._guard.checkpoint_saved(filepath)
        return answer

    def _again(self, model: nn.Module, batch: Mapping[str, Any]) -> Any:
        """One batch through training_step again, without logging it a second time.

        The strategy calls it through DDP where there is one, and DDP notes in forward whether the backward to come
        reduces: of an accumulated window only the last one does.
        """
        module = self._trainer.lightning_module
        quiet = not batch["reduces"] and isinstance(model, DistributedDataParallel)
        kept = {name: vars(module)[name] for name in ("log", "log_dict") if name in vars(module)}
        vars(module)["log"] = vars(module)["log_dict"] = lambda *args, **kwargs: None
        try:
            with model.no_sync() if quiet else nullcontext():  # type: ignore[operator]
                output = self._trainer.strategy.training_step(*batch["args"], **batch["kwargs"])
        finally:
            for name in ("log", "log_dict"):
                vars(module).pop(name)
            vars(module).update(kept)
        return _loss_of(output)

    @boundary
    def _let_go(self) -> None:
        undo_all(self._undo, self.failed)
        if self._samples is not None:
            self._samples.close()
        if self._guard is not None:
            self._guard.close()


def attach_lightning(trainer: Any, **options: Any) -> LightningGuard:
    """Guard every fit of this trainer from now on."""
    if any(isinstance(callback, LightningGuard) for callback in trainer.callbacks):
        raise UsageError("This trainer is already attached to a guard. Close that one first, or go on with it.")
    _refuse_strategy(trainer)
    guard = LightningGuard(trainer, **options)
    trainer.callbacks.insert(0, guard)  # before any checkpoint callback, which Lightning keeps last
    return guard


def _refuse_strategy(trainer: Any) -> None:
    name = type(trainer.strategy).__name__
    if name in _NOT_OURS:
        raise UsageError(
            f"{name} makes or shards the update itself, so there is no moment at which a bad one could be refused "
            "exactly. steadygrad guards Lightning on one device, with DDP and with ModelParallelStrategy (FSDP2)."
        )


def _wrapped(trainer: Any, pl_module: nn.Module) -> nn.Module:
    """What the strategy made of the module: DDP around it, or the module itself, sharded or not."""
    model = trainer.strategy.model
    return model if isinstance(model, nn.Module) else pl_module


def _clips_to(trainer: Any) -> float | None:
    by_norm = str(trainer.gradient_clip_algorithm or "norm").rsplit(".", 1)[-1].lower() == "norm"
    return float(trainer.gradient_clip_val) if trainer.gradient_clip_val and by_norm else None


def _after_the_first(result: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
    """A closure that was called already: its result first, and the closure itself for an optimizer that asks again."""
    first = [result]

    def call() -> Any:
        return first.pop() if first else closure()

    return call


def _loss_of(output: Any) -> Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None
