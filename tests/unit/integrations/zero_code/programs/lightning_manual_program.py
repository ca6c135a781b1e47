"""A LightningModule that steps its optimizers itself; the last batch has one row, whose variance is not a number."""

from __future__ import annotations

import json
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Two(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic, self.scale = nn.Linear(3, 2), nn.Linear(3, 1)

    def training_step(self, x: Tensor, index: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc]
        scaled = self.scale(x)
        spread = (self.critic(x).var(dim=0) + 1e-8).sqrt().mean()
        first.zero_grad()
        self.manual_backward(spread)
        first.step()
        second.zero_grad()
        self.manual_backward(scaled.square().mean())
        second.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (self.critic, self.scale)]


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Two()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(torch.randn(25, 3), 4))  # type: ignore[arg-type]
    print("RESULT", json.dumps(all(bool(torch.isfinite(each).all()) for each in module.parameters())))
