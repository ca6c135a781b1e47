"""A Lightning module and trainer, guarded by one line.

`python examples/lightning_module.py [RUN_DIR]`. The loss divides by a sum that is zero for one batch.
"""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg


class Regressor(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        points, targets, weights = batch
        errors = (self.body(points).squeeze(-1) - targets).square()
        loss = (errors * weights).sum() / weights.sum()  # a batch whose weights are all zero: 0 / 0
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(320, 8, generator=generator)
    weights = torch.ones(320)
    weights[96:112] = 0.0
    return TensorDataset(points, points.sum(1), weights)


def main(run_dir: str | None = None) -> object:
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    guard = sg.attach(trainer, run_dir=run_dir)  # the one line
    trainer.fit(Regressor(), DataLoader(dataset(), batch_size=16))

    told = guard.summary()
    print(f"{told['steps']} steps, {told['skipped']} refused")
    for incident in guard.incidents:
        origin = incident.diagnosis.origin
        print(f"step {incident.first_step}: {incident.headline}; {incident.diagnosis.cause.slug} at {origin.code_line}")
    return guard


if __name__ == "__main__":
    main(*sys.argv[1:2])
