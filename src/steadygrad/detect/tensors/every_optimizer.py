"""The optimizers and loss scalers of the whole process, for a question that those of one training cannot answer."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.optim import Optimizer


def every_optimizer() -> list[Optimizer]:
    """Every optimizer of the process. Takes a while: asked once or twice in a run, and only in doubt."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]


def scaler_of(optimizer: Optimizer) -> Any:
    """The GradScaler whose step makes the update of this optimizer that is under way, if any. Takes as long."""
    scalers = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.amp.GradScaler)]
    known = (s for s in scalers if s.is_enabled() and id(optimizer) in getattr(s, "_per_optimizer_states", {}))
    return next(known, None)
