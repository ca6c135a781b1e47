"""What `guard.summary()` counts over all optimizers that `sg.attach` was given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ...records import Reading
from .optimizer_loop import OptimizerLoop


def counts_of(loops: Sequence[OptimizerLoop]) -> dict[str, Any]:
    """Steps, skipped, success rate, first and last bad step."""
    ledgers = [loop.log.ledger for loop in loops]
    steps, applied = sum(x.steps for x in ledgers), sum(x.applied for x in ledgers)
    overflows = sum(x.overflows for x in ledgers)
    return {
        "steps": steps,
        "applied": applied,
        "skipped": sum(x.skipped for x in ledgers),
        "skipped_by_program": sum(loop.log.skipped_by_program for loop in loops),
        "overflows": overflows,
        "rolled_back": sum(x.rollbacks_total for x in ledgers),
        "success_rate": applied / (steps - overflows) if steps > overflows else 1.0,
        "first_bad_step": min((x.first_bad_step for x in ledgers if x.first_bad_step is not None), default=None),
        "last_bad_step": max((x.last_bad_step for x in ledgers if x.last_bad_step is not None), default=None),
        "incidents": sum(len(loop.log.incidents) for loop in loops),
        "lr_factor": min(x.lr_factor for x in ledgers),
        "clip_factor": min(x.clip_factor for x in ledgers),
        "halted": any(loop.engine.halt is not None for loop in loops),
    }


def name_each(loops: Sequence[OptimizerLoop]) -> None:
    """Let each say which of several optimizers it is: their updates share one count."""
    for number, loop in enumerate(loops if len(loops) > 1 else (), 1):
        parts = [name.split(".")[:-1] for name in loop.names]
        alike = takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
        shared = ".".join(column[0] for column in alike)
        kind = type(loop.optimizer).__name__
        loop.log.of_optimizer = f"optimizer {number} of {len(loops)} ({kind}{f' of {shared}' if shared else ''})"


def last_reading(loop: OptimizerLoop) -> Reading:
    """The numbers of the last step that was recorded."""
    last = loop.log.recent[-1]
    return Reading(step=last.step, loss=last.loss, grad_norm=last.grad_norm, loss_scale=last.loss_scale)
