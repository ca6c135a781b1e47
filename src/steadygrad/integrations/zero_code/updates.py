"""An `optimizer.step()` under way: whose it is, what stands inside it, and what its numbers say."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import TrainingHalted
from ...records import Decision, Reading
from ..desk import Desk, Letter

_OPTIMIZER_FILE = Optimizer.profile_hook_step.__code__.co_filename
_POISONED = frozenset({"SY105", "SY106", "SY107"})


@dataclass(slots=True)
class Update:
    """An `optimizer.step()` under way. Its frame tells a step inside it from the next one after it failed."""

    optimizer: Optimizer
    frame: FrameType
    refused: bool = False
    desk: Desk | None = None
    overflow: bool = False
    step: int = 0
    letter: Letter | None = None
    """Its numbers, if it is made under a device flag and judged after it."""
    loss_seen: bool = True


def halted(decision: Decision, path: Any) -> TrainingHalted:
    if not any(found.code in _POISONED for found in decision.findings):
        return TrainingHalted.at(decision.step, decision.reason, path)
    return TrainingHalted(
        f"Training was halted at step {decision.step}: {decision.reason}. They were bad before this step, so skipping "
        "cannot help: start again from a checkpoint that is good (steady scan finds it)."
    )


def step_frame() -> FrameType:
    """The frame of torch's own wrapper around `optimizer.step`, which lives as long as the step does."""
    frame = start = sys._getframe(1)
    for _ in range(12):
        if frame.f_code.co_filename == _OPTIMIZER_FILE:
            return frame
        if frame.f_back is None:
            break
        frame = frame.f_back
    return start


def is_below(frame: FrameType | None, outer: FrameType) -> bool:
    """Whether a call stands inside another one that is still running."""
    while frame is not None:
        if frame is outer:
            return True
        frame = frame.f_back
    return False


def finite(parameters: Sequence[Tensor]) -> bool:
    return all(p.grad is None or bool(torch.isfinite(p.grad.detach().to_dense()).all()) for p in parameters)


def scaler_refuses(optimizer: Optimizer, reading: Reading) -> bool:
    """A fused optimizer under a GradScaler refuses an overflow by itself; that the loss is sound tells it apart."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and math.isfinite(reading.loss) and float(found) > 0
