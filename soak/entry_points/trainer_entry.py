"""A transformers Trainer around a model that returns its own loss, plain and with sg.attach(trainer)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

import steadygrad as sg

from ..observed import Observed, collected_messages, observe
from ..state import State, state_of
from ..training import LossFunction, Training
from .batches import Batches

BASELINE = "trainer"


def why_not(training: Training) -> str | None:
    if len(training.optimizers) > 1:
        return "two optimizers"
    if training.precision == "fp16":
        return "it would make a loss scale of its own"
    return "the optimizer evaluates its loss itself" if training.closure else None


class WithLoss(nn.Module):
    """A model whose forward pass returns the loss."""

    def __init__(self, inner: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.inner, self._loss = inner, loss

    def forward(self, batch: Any) -> dict[str, Tensor]:
        return {"loss": self._loss(self.inner, batch)}


class SameRate(LRScheduler):
    """The trainer wants a schedule; this one leaves every rate as it is."""

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]


class Hooks(TrainerCallback):
    """What the regime does around each update."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.before(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.averaged is not None:
            self._training.averaged.update_parameters(self._training.models[0])
        self._training.after(state.global_step - 1)


def plain(build: Callable[[], Training], steps: int) -> State:
    training = build()
    with tempfile.TemporaryDirectory() as folder:
        _trainer(training, steps, folder).train()
    return state_of(training)


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    training, halted = build(), None
    with tempfile.TemporaryDirectory() as folder, collected_messages() as messages:
        trainer = _trainer(training, steps, folder)
        guard = sg.attach(trainer)
        try:
            trainer.train()
        except sg.TrainingHalted as error:
            halted = str(error)
        observed = observe(training, [guard], messages, halted)
        guard.close()
    return observed


def _trainer(training: Training, steps: int, folder: str) -> Trainer:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|accelerate|torch)\..*")
    AcceleratorState._reset_state(reset_partial_state=True)
    player = training.players[0]
    optimizer: Optimizer = player.optimizers[0]
    scheduler = training.scheduler if training.scheduler is not None else SameRate(optimizer)
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / "out"), max_steps=steps, per_device_train_batch_size=1,
        use_cpu=training.device == "cpu",
        train_sampling_strategy="sequential", gradient_accumulation_steps=training.accumulate,
        max_grad_norm=player.clip or 0.0, bf16=training.precision == "bf16", save_strategy="no",
        logging_strategy="no", report_to="none", disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model=WithLoss(player.model, player.loss), args=arguments,
        train_dataset=Batches(training, training.epoch or steps * training.accumulate),
        data_collator=lambda rows: {"batch": rows[0]}, optimizers=(optimizer, scheduler), callbacks=[Hooks(training)],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer
