"""Another loss scale: the loss is multiplied before backward and the gradients divided after it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable


class LossScaleChange(ReplayChange):
    """`factor` times the run's own loss scale. The gradients are handed on at the size the run expects."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def terms(self, terms: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {name: term * self.factor for name, term in terms.items()}

    def after_backward(self, replayable: Replayable) -> None:
        for parameter in replayable.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.factor)
