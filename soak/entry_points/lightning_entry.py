"""A Lightning trainer with automatic optimization, plain and with sg.attach(trainer)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

import steadygrad as sg

from ..observed import Messages, Observed, collected_messages, observe
from ..state import State, state_of
from ..training import Training
from .batches import Batches

BASELINE = "lightning"


def why_not(training: Training) -> str | None:
    if len(training.optimizers) > 1:
        return "two optimizers"
    return None


class Module(pl.LightningModule):
    """A regime as a Lightning module."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.player = training.players[0]
        self.inner = self.player.model
        self.regime = training
        self.updates = 0

    def configure_optimizers(self) -> Any:
        optimizer = self.player.optimizers[0]
        if self.regime.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.regime.scheduler, "interval": "step"}}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.player.loss(self.inner, batch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == self.updates:
            self.regime.before(self.updates)
            self.updates += 1

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == self.updates:
            if self.regime.averaged is not None:
                self.regime.averaged.update_parameters(self.inner)
            self.regime.after(self.updates - 1)


def plain(build: Callable[[], Training], steps: int) -> State:
    training = build()
    _quiet()
    _trainer(training, steps).fit(Module(training), _loader(training, steps))
    return state_of(training)


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    training, halted = build(), None
    _quiet()
    with collected_messages() as messages:
        trainer = _trainer(training, steps)
        guard = sg.attach(trainer)
        try:
            trainer.fit(Module(training), _loader(training, steps))
        except sg.TrainingHalted as error:
            halted = str(error)
        return _read(training, guard, messages, halted)


def _read(training: Training, guard: Any, messages: Messages, halted: str | None) -> Observed:
    observed = observe(training, [guard], messages, halted)
    guard.close()
    return observed


def _trainer(training: Training, steps: int) -> Any:
    precision = {"bf16": "bf16-mixed"}.get(training.precision, "32-true")
    more: dict[str, Any] = {"precision": precision}
    if training.precision == "fp16":
        more = {"plugins": [MixedPrecision("16-mixed", training.device, training.scaler)]}
    return pl.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu" if training.device == "cpu" else "gpu",
        devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=training.players[0].clip,
        accumulate_grad_batches=training.accumulate, **more,
    )  # fmt: skip


def _loader(training: Training, steps: int) -> DataLoader[Any]:
    return DataLoader(Batches(training, training.epoch or steps * training.accumulate), batch_size=None)


def _quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", module=r"torch\..*")
    torch.set_num_threads(1)
