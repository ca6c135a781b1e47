"""One micro-batch of a trainer, as it was given to `compute_loss`, and how to run it again exactly.

A replay goes through the trainer's own `training_step` with two methods replaced: `_prepare_inputs` hands back what was
captured (so nothing is generated or moved twice), and `accelerator.backward` gives the loss to us instead of
differentiating it. So label smoothing, `num_items_in_batch`, autocast, a subclass's own loss and the division by the
accumulation are whatever the installed version makes of them. What `compute_loss` writes into the trainer (metrics,
token counts, an entropy controller) is restored afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...engine.state.batch_buffer import pristine
from ..loops.patching import Patches

ITEMS, WINDOW, SYNC, RNG = "steady.num_items_in_batch", "steady.window", "steady.sync", "steady.rng"
_RESERVED = (ITEMS, WINDOW, SYNC, RNG)
_PLAIN = (int, float, bool, str, type(None))


def captured(trainer: Any, inputs: Mapping[str, Any], num_items: Any, *, with_rng: bool) -> dict[str, Any]:
    """The micro-batch as plain data: its inputs under their own names, and what else the loss depends on.

    With `with_rng` the random state is kept too: where the batch was generated after the window began, the state from
    before the window is not the one that dropout drew from. Does not sync.
    """
    batch = dict(pristine(dict(inputs)))
    batch[ITEMS] = num_items
    batch[WINDOW] = window_size(trainer)
    batch[SYNC] = bool(trainer.accelerator.sync_gradients)
    if with_rng:
        batch[RNG] = _rng_tensors()
    return batch


def window_size(trainer: Any) -> int:
    """How many micro-batches make the window under way; the last of an epoch may be shorter."""
    size = getattr(trainer, "current_gradient_accumulation_steps", None) or trainer.args.gradient_accumulation_steps
    return int(size)


class MicroBatchReplay:
    """`replay(model, batch)` is the loss of a captured micro-batch, with its graph, as `training_step` had it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.active = False
        """True while a step is run again: what listens to the trainer looks away."""
        self.factor = 1
        """What the caller divides by before backward. Multiplying by it here shows a step's loss in the trainer's
        own size, and the gradient of x * n / n is exact for the n that `exact_factor` allows."""

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        inputs = {key: value for key, value in batch.items() if key not in _RESERVED}
        if (rng := batch.get(RNG)) is not None:
            _put_rng_tensors(rng)
        losses: list[Tensor] = []
        # DDP notes in forward whether the backward to come reduces; all but a window's last micro-batch do not.
        quiet = model.no_sync() if not batch[SYNC] and isinstance(model, DistributedDataParallel) else nullcontext()
        with self._stage(batch, inputs, losses), quiet:
            type(self._trainer).training_step(self._trainer, model, inputs, batch[ITEMS])
        if len(losses) != 1:
            raise RuntimeError(f"{type(self._trainer).__name__}.training_step called backward {len(losses)} times.")
        return losses[0] * self.factor if self.factor != 1 else losses[0]

    @contextmanager
    def _stage(self, batch: Mapping[str, Any], inputs: dict[str, Any], losses: list[Tensor]) -> Iterator[None]:
        trainer, accelerator = self._trainer, self._trainer.accelerator
        soft, patches = TrainerAttributes.of(trainer), Patches()
        divisor = accelerator.gradient_accumulation_steps

        def keep(loss: Tensor, **_: Any) -> None:
            losses.append(loss if divisor == 1 else loss / divisor)

        patches.set(trainer, "_prepare_inputs", lambda _given: inputs)
        patches.set(accelerator, "backward", keep)
        patches.set(trainer, "current_gradient_accumulation_steps", batch[WINDOW])
        for owner in (trainer, accelerator):
            patches.set(owner, "log", _not_logged)
        synced = accelerator.gradient_state.sync_gradients
        accelerator.gradient_state._set_sync_gradients(batch[SYNC])
        self.active = True
        try:
            yield
        finally:
            self.active = False
            accelerator.gradient_state._set_sync_gradients(synced)
            patches.undo()
            soft.put_back(trainer)


def _not_logged(*_: Any, **__: Any) -> None:
    """In place of `log` while a step is run again: its numbers were logged the first time."""


@functools.cache
def exact_factor(size: int) -> int:
    """`size` if multiplying and dividing by it leaves a float32 gradient of one exactly one, else 1."""
    one = torch.ones(())
    return size if bool((one / size) * size == one) else 1


class TrainerAttributes:
    """What computing a loss may move in the trainer itself: numbers, flags, small tensors, and TRL's metrics."""

    def __init__(self, values: dict[str, Any], metrics: dict[str, dict[str, int]]) -> None:
        self.values = values
        self._metrics = metrics

    @classmethod
    def of(cls, trainer: Any) -> TrainerAttributes:
        return cls(plain_values(trainer), _lengths(getattr(trainer, "_metrics", None)))

    def put_back(self, trainer: Any) -> None:
        """As it was, metrics cut to their former length."""
        for name, value in self.values.items():
            if vars(trainer).get(name) is not value:
                setattr(trainer, name, value)
        for mode, lists in (getattr(trainer, "_metrics", None) or {}).items():
            if isinstance(lists, dict):
                for key in list(lists):
                    kept = self._metrics.get(mode, {}).get(key)
                    if kept is None:
                        del lists[key]
                    elif isinstance(lists[key], list):
                        del lists[key][kept:]


def plain_values(trainer: Any) -> dict[str, Any]:
    """The trainer's own numbers, flags and tensors by name. Host work only."""
    return {name: value for name, value in vars(trainer).items() if type(value) in _PLAIN or isinstance(value, Tensor)}


def _lengths(metrics: Any) -> dict[str, dict[str, int]]:
    if not isinstance(metrics, dict):
        return {}
    return {
        mode: {key: len(values) for key, values in lists.items() if isinstance(values, list)}
        for mode, lists in metrics.items()
        if isinstance(lists, dict)
    }


def _rng_tensors() -> dict[str, Any]:
    cuda = list(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _put_rng_tensors(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
