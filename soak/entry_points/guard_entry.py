"""sg.Guard: one guard for each player, which owns the whole step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import steadygrad as sg

from ..observed import Observed, collected_messages, observe
from ..plain_loop import run_loop
from ..state import State, state_of
from ..training import Training

BASELINE = "loop"


def why_not(training: Training) -> str | None:
    if training.closure:
        return "the optimizer evaluates its loss itself"
    if training.epoch is not None and training.epoch % training.accumulate:
        return "windows of unequal size"
    return None


def plain(build: Callable[[], Training], steps: int) -> State:
    training = build()
    for _ in run_loop(training, steps):
        pass
    return state_of(training)


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    training, halted = build(), None
    with collected_messages() as messages:
        guards = [_guard(training, number) for number in range(len(training.players))]
        try:
            _train(training, guards, steps)
        except sg.TrainingHalted as error:
            halted = str(error)
        observed = observe(training, guards, messages, halted)
        for guard in guards:
            guard.close()
    return observed


def _guard(training: Training, number: int) -> sg.Guard:
    player = training.players[number]
    more: dict[str, Any] = {"scaler": training.scaler} if training.scaler is not None else {}
    if training.accumulate > 1:
        more["accumulate"] = training.accumulate
    optimizer: Any = player.optimizers[0] if len(player.optimizers) == 1 else list(player.optimizers)
    return sg.Guard(
        player.model, optimizer, player.loss, max_grad_norm=player.clip, precision=training.precision,
        scheduler=training.scheduler, ema=training.averaged, **more,
    )  # fmt: skip


def _train(training: Training, guards: list[sg.Guard], steps: int) -> None:
    windows = training.windows()
    for step in range(steps):
        training.before(step)
        guard = guards[training.turn(step)]
        for _ in range(next(windows)):
            guard.step(next(training.batches))
        training.after(step)
