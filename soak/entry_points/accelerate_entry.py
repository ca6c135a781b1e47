"""A loop around an Accelerator, plain and with sg.attach(accelerator)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader

import steadygrad as sg

from ..observed import Observed, collected_messages, observe
from ..state import State, state_of
from ..training import Training
from .batches import Batches

BASELINE = "accelerate"


def why_not(training: Training) -> str | None:
    if len(training.optimizers) > 1:
        return "two optimizers"
    if training.precision == "fp16":
        return "it would make a loss scale of its own"
    return "the optimizer evaluates its loss itself" if training.closure else None


def plain(build: Callable[[], Training], steps: int) -> State:
    training = build()
    _train(training, steps, attach=lambda accelerator: None)
    return state_of(training)


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    training, halted = build(), None
    guards: list[Any] = []
    with collected_messages() as messages:
        try:
            _train(training, steps, attach=lambda accelerator: guards.append(sg.attach(accelerator)))
        except sg.TrainingHalted as error:
            halted = str(error)
        observed = observe(training, guards, messages, halted)
        for guard in guards:
            guard.close()
    return observed


def _train(training: Training, steps: int, *, attach: Callable[[Any], None]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    precision = {"bf16": "bf16"}.get(training.precision, "no")
    accelerator = Accelerator(
        cpu=training.device == "cpu", mixed_precision=precision, gradient_accumulation_steps=training.accumulate
    )
    player, length = training.players[0], training.epoch or steps * training.accumulate
    model, optimizer, loader, scheduler = accelerator.prepare(
        player.model, player.optimizers[0], DataLoader(Batches(training, length), batch_size=None), training.scheduler
    )
    attach(accelerator)
    step, begins = 0, True
    while step < steps:
        for batch in loader:
            if begins:
                training.before(step)
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = player.loss(model, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients and player.clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), player.clip)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()
            begins = bool(accelerator.sync_gradients)
            if begins:
                if training.averaged is not None:
                    training.averaged.update_parameters(player.model)
                training.after(step)
                step += 1
            if step == steps:
                break
