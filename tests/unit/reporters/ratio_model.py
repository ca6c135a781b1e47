"""A model whose mean over a mask is 0 / 0 when the mask is empty, in a file of its own so that its line is named."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ratio(nn.Module):
    """A masked mean of a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        return (hidden * mask).sum(1) / mask.sum(1)


def ratio_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Squared distance from the target."""
    return (model(batch["x"], batch["mask"]) - batch["y"]).pow(2).mean()
