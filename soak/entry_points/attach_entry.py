"""sg.attach(optimizer, model=...): the loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

import steadygrad as sg

from ..observed import Observed, collected_messages, observe
from ..plain_loop import run_loop
from ..training import Training
from .guard_entry import plain as plain

BASELINE = "loop"


def why_not(training: Training) -> str | None:
    return None


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    training, halted = build(), None
    models, optimizers = training.models, training.optimizers
    model = models[0] if len(models) == 1 else nn.ModuleList(models)
    options = {"scheduler": training.scheduler, "scaler": training.scaler}
    with collected_messages() as messages:
        guard = sg.attach(
            optimizers[0] if len(optimizers) == 1 else optimizers,
            model=model,
            **{name: value for name, value in options.items() if value is not None},
        )
        try:
            for _ in run_loop(training, steps):
                pass
        except sg.TrainingHalted as error:
            halted = str(error)
        observed = observe(training, [guard], messages, halted)
        guard.close()
    return observed
