"""The scale of a program's GradScaler after a refused update: as if the batch had not been there.

A scaler lowers its scale whatever made a gradient non-finite, and counts a step towards raising it otherwise. For an
overflow of the scale that is right, and is left to it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class HeldScales:
    """The optimizers whose updates were refused since a scaler's last `update`."""

    def __init__(self) -> None:
        self._refused: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()

    def stepped(self, scaler: Any, optimizer: Optimizer, *, refused: bool) -> None:
        """`scaler.step(optimizer)` was called, and its update was refused or not."""
        if refused:
            self._refused.setdefault(scaler, set()).add(id(optimizer))

    def update(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """`scaler.update()`, without what it saw of the updates that were refused."""
        refused = self._refused.pop(scaler, None)
        if not refused or args or kwargs:
            return original(*args, **kwargs)
        states = scaler._per_optimizer_states
        for key in refused:
            states.pop(key, None)
        return original() if any(state["found_inf_per_device"] for state in states.values()) else states.clear()


def dropped_loss(scaled: Sequence[Tensor], loss: Tensor | None) -> float | None:
    """The loss of a step that a GradScaler drops, if it is known: one that is not finite before others. Reads the
    device."""
    losses = [float(each) for each in (*scaled, *([loss] if loss is not None else []))]
    return next((each for each in losses if not math.isfinite(each)), losses[-1] if losses else None)
