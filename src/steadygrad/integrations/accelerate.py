"""A loop of the user's own around an `accelerate.Accelerator`.

The loop stays as it is. Where it calls the model, `accelerator.backward`, `accelerator.clip_grad_norm_` and the
prepared optimizer's `step`, the guard listens. A refused update is told to Accelerate in its own words
(`step_was_skipped`), so the prepared schedule holds. Accelerate's own flag is wrong for a fused optimizer under a
GradScaler (the optimizer is called and refuses by itself); here it is set from what really happened.

With `loss_fn(model, batch)`, or where the model returns the loss that backward is called on, refused steps are
diagnosed and rollbacks run the good batches again; else they are refused, and that is all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from ..detect.tensors.foreign_objects import isinstance
from ..engine.fault_barrier import listener
from ..engine.record.loop_skips import is_bad
from ..records.errors import UsageError
from .loops.loop_guard import LoopGuard
from .loops.patch_barrier import undo_all
from .loops.patching import wrap_method
from .loops.repeatable_model_calls import ModelCalls, run_call

_NOT_OURS = {
    "DEEPSPEED": "DeepSpeed makes its update inside accelerator.backward",
    "MEGATRON_LM": "Megatron-LM runs the whole step itself",
    "XLA": "XLA steps are traced and run later",
}


class AcceleratorGuard(LoopGuard):
    """What `sg.attach(accelerator, ...)` returns. Options are those of LoopGuard."""

    def __init__(
        self, accelerator: Any, *, loss_fn: Callable[[nn.Module, Any], Any] | None = None, **options: Any
    ) -> None:
        model, optimizer, scheduler = _prepared(accelerator)
        self._accelerator, self._accelerated = accelerator, optimizer
        self._loss_fn = loss_fn
        self._current: Any = None
        self._undo: list[Callable[[], Any]] = []
        super().__init__(
            model,
            optimizer.optimizer,
            loss_fn if loss_fn is not None else run_call,
            scheduler=scheduler,
            scaler=accelerator.scaler,
            accumulate=accelerator.gradient_accumulation_steps,
            precision_shown=str(accelerator.mixed_precision),
            **options,
        )
        self._calls = ModelCalls(
            model, before=self._begin, looks_away=lambda: self.busy, left_out=self._left_out, failed=self.failed
        )
        self._undo.append(self._calls.close)
        self._undo.append(wrap_method(accelerator, "backward", self._backward, self.failed))
        self._undo.append(wrap_method(accelerator, "clip_grad_norm_", self._clip, self.failed))
        self._undo.append(wrap_method(accelerator, "clip_grad_value_", self._clip_value, self.failed))
        self._undo.append(wrap_method(optimizer, "step", self._step, self.failed, self._may_step))
        for loader in accelerator._dataloaders if loss_fn is not None else ():
            self._undo.append(wrap_method(loader, "__iter__", self._iterate))

    def close(self) -> None:
        """Take everything off the accelerator again and close the journal."""
        listener(self._calls.went_on, self.failed)()
        undo_all(self._undo, self.failed)
        super().close()

    def _iterate(self, original: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Accelerate fetches one batch ahead; what it hands out is the one being trained on."""
        for batch in original():
            self._current = batch
            yield batch

    def _begin(self) -> None:
        self.accumulate = self._accelerator.gradient_accumulation_steps
        self.begin(self._current)

    def _begin_late(self) -> None:
        """The loop calls methods or parts of the model, which nothing of ours hears."""
        if not self.busy:
            self._begin()
            self.forward_not_heard()

    def _left_out(self, given: Any, output: Any) -> bool:
        """Whether a call of the model that no backward followed was left out for what it returned."""
        if not is_bad(output):
            return False
        self.left_out(output, given)
        return True

    def _backward(self, original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        if not self._calls.begun:
            self._begin_late()
        call, given = self._calls.taken(loss)
        result = original(loss, **kwargs)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            batch = self._current if self._loss_fn is not None else call
            # A batch that cannot be run again is still called by what the model was given.
            key = self._name_of(given, self._engine.batches_seen) if batch is None and given is not None else None
            self.seen(batch, {"loss": loss}, key)
        return result

    def _clip(self, original: Callable[..., Any], parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if self._accelerator.sync_gradients:
            self.clips_to(float(max_norm))
            self.before_clip()
        return original(parameters, max_norm, *args, **kwargs)

    def _clip_value(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._accelerator.sync_gradients:
            self.before_clip()
        return original(*args, **kwargs)

    def _may_step(self, *_: Any) -> bool:
        self._accelerated._is_overflow = not self.may_update()
        return self.landed

    def _step(self, original: Callable[..., Any], closure: Any = None) -> Any:
        if closure is not None or not self._accelerated.gradient_state.sync_gradients or self.busy:
            return original(closure)
        self._accelerated._is_overflow = False
        landed = self.commit(functools.partial(original, None))
        if not landed:
            self._accelerated._is_overflow = True
        return None


def attach_accelerator(accelerator: Any, **options: Any) -> AcceleratorGuard:
    """Guard the loop around this accelerator; call it after `accelerator.prepare`."""
    return AcceleratorGuard(accelerator, **options)


def _prepared(accelerator: Any) -> tuple[nn.Module, Any, Any]:
    kind = accelerator.distributed_type.name
    if kind in _NOT_OURS:
        raise UsageError(
            f"{_NOT_OURS[kind]}, so there is no moment at which a bad update could be refused. "
            "steadygrad guards Accelerate on one device, with DDP and with FSDP2."
        )
    models, optimizers = accelerator._models, accelerator._optimizers
    if not models or not optimizers:
        raise UsageError(
            "This Accelerator has prepared no model or no optimizer yet, so there is nothing to guard. "
            "Call sg.attach(accelerator) after accelerator.prepare(model, optimizer, ...)."
        )
    if len(models) > 1 or len(optimizers) > 1:
        raise UsageError(
            f"This Accelerator has prepared {len(models)} models and {len(optimizers)} optimizers, and which step "
            "together only your loop knows. Attach to the optimizers instead: "
            "sg.attach([optimizer.optimizer, ...], model=model)."
        )
    schedulers = accelerator._schedulers
    return models[0], optimizers[0], schedulers[0] if schedulers else None
