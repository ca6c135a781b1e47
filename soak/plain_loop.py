"""The loop without any guard. Every other way to run a regime is compared with what this one leaves behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .training import Player, Training


def run_loop(training: Training, steps: int) -> Iterator[float]:
    """Trains for so many updates; yields the loss of each one, the mean over its micro-batches."""
    windows = training.windows()
    for step in range(steps):
        training.before(step)
        player = training.players[training.turn(step)]
        if training.closure:
            loss = _step_with_closure(training, player)
        else:
            loss = _step(training, player, next(windows))
        if training.averaged is not None:
            training.averaged.update_parameters(player.model)
        training.after(step)
        yield loss


def _step(training: Training, player: Player, window: int) -> float:
    losses = []
    for _ in range(window):
        with training.autocast():
            loss = player.loss(player.model, next(training.batches))
        share = loss / window if window > 1 else loss
        (training.scaler.scale(share) if training.scaler else share).backward()
        losses.append(float(loss.detach()))
    applied = _update(training, player)
    if training.scheduler is not None and applied:
        training.scheduler.step()
    for optimizer in player.optimizers:
        optimizer.zero_grad()
    return sum(losses) / len(losses)


def _update(training: Training, player: Player) -> bool:
    """Clips and steps; False where the loss scale overflowed and the update was left out."""
    scaler = training.scaler
    if scaler is not None:
        for optimizer in player.optimizers:
            scaler.unscale_(optimizer)
    if player.clip is not None:
        torch.nn.utils.clip_grad_norm_(player.model.parameters(), player.clip)
    for optimizer in player.optimizers:
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
    if scaler is None:
        return True
    scale = scaler.get_scale()
    scaler.update()
    return bool(scaler.get_scale() >= scale)


def _step_with_closure(training: Training, player: Player) -> float:
    batch = next(training.batches)
    (optimizer,) = player.optimizers

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = player.loss(player.model, batch)
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)  # type: ignore[arg-type]
    if training.scheduler is not None:
        training.scheduler.step()
    return float(loss.detach())


def first_bad_step(losses: list[float]) -> int | None:
    """The first update whose loss was not finite."""
    return next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
