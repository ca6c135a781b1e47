"""Another loss scale: the loss is multiplied before backward and the gradients divided after it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..patient import Patient
from ..replay import Change


class Scale(Change):
    """`factor` times the run's own loss scale. The gradients are handed on at the size the run expects."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def terms(self, terms: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {name: term * self.factor for name, term in terms.items()}

    def after_backward(self, patient: Patient) -> None:
        for parameter in patient.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.factor)
