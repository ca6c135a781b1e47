"""What a cross-entropy is where nothing has been learnt yet: the logarithm of the number of classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CROSS_ENTROPY = ("cross_entropy", "nll_loss")


class CrossEntropies(TorchFunctionMode):
    """While it is in place: the largest mean cross-entropy that was computed, and how many classes it had."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.classes = math.nan, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if getattr(func, "__name__", "") in CROSS_ENTROPY and kwargs.get("reduction", "mean") == "mean":
            scores = args[0] if args else kwargs.get("input")
            if isinstance(scores, torch.Tensor) and isinstance(out, torch.Tensor) and not out.dim() and scores.dim():
                self._note(float(out.detach()), scores.shape[1 if scores.dim() > 1 else 0])
        return out

    def _note(self, value: float, classes: int) -> None:
        if math.isfinite(value) and classes > 1 and not value <= self.value:
            self.value, self.classes = value, classes
