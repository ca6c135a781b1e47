"""Whether the program itself shrinks its weights between updates, all by the same part: decay that is written by hand.

A few parameters are copied after an update and compared when the model is called next, in host memory. It ends with the
first update after which they are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ...tensors.readable_tensors import describable
from .gradient_marks import spread

_TIMES = 3
_MAX_NUMEL = 1 << 16
_ROUNDING = 1e-5


class HandDecay:
    """Looks at the first updates. `factor` is what weights are multiplied with, once that is certain."""

    def __init__(self) -> None:
        self._then: list[tuple[TensorWeakRef, Tensor]] = []
        self._factors: list[float] = []
        self.factor: float | None = None
        self.done = False

    def updated(self, parameters: Sequence[Tensor]) -> None:
        """An update was made."""
        chosen = [
            p for p in spread(parameters) if describable(p) and p.device.type == "cpu" and 1 < p.numel() <= _MAX_NUMEL
        ]
        exact = [p for p in chosen if p.dtype in (torch.float32, torch.float64)]
        self._then = [(TensorWeakRef(p), p.detach().clone()) for p in exact]

    def called(self) -> None:
        """The model is called next."""
        then, self._then = self._then, []
        if not then:
            return
        pairs = [(now.detach().double(), copy.double()) for ref, copy in then if (now := ref()) is not None]
        factors = [_factor(now, copy) for now, copy in pairs if bool(copy.any())]
        known = [factor for factor in factors if factor is not None]
        self._factors += known
        alike = max(self._factors, default=0.0) - min(self._factors, default=0.0) <= _ROUNDING
        if len(known) < 2 or len(known) < len(factors) or not alike or known[0] > 1 - 100 * _ROUNDING:
            self.done = True
        elif len(self._factors) >= _TIMES * len(known):
            self.done, self.factor = True, sum(self._factors) / len(self._factors)


def _factor(now: Tensor, then: Tensor) -> float | None:
    """What all elements were multiplied with; None where there is no such number above zero."""
    if now.shape != then.shape:
        return None
    factor = float((now * then).sum() / then.pow(2).sum())
    same = float((now - factor * then).abs().max()) <= 1e-6 * float(then.abs().max())
    return factor if same and factor > 0 else None
