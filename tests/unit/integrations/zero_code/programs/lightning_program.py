"""A LightningModule and its Trainer."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from common_parts import BATCH, Net, compare, points, state
from torch import Tensor
from torch.utils.data import DataLoader


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, x: Tensor, index: int) -> Tensor:
        return (self.net(x) - 1.0).pow(2).mean()

    def configure_optimizers(self) -> Any:
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": self.schedule, "interval": "step"}}


def train(accumulate: int, poison: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    module = Lit()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=accumulate, gradient_clip_val=1.0,
    )  # fmt: skip
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(points(accumulate, poison), BATCH))  # type: ignore[arg-type]
    return state(module, module.optimizer, module.schedule)


if __name__ == "__main__":
    compare(train)
