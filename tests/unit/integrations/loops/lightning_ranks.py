"""Run by each rank under torchrun: a Lightning trainer with DDP over data that is poisoned on one rank, and without it.

`lightning_ranks.py FOLDER`. Each rank writes what it found to FOLDER/rankN.json, a list with one entry a case.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg

warnings.simplefilter("ignore")
import lightning.pytorch as pl  # noqa: E402

RANK = int(os.environ["RANK"])
WINDOWS, SIZE, BAD, GUILTY = 5, 4, 2, 1
CASES = (("input", 1), ("loss", 2))
"""What goes wrong, and how many batches make an update."""


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(16, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, weight = batch
        out = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        loss: Tensor = (out.squeeze(-1).square() * weight.log()).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def data(fault: str | None, accumulate: int) -> TensorDataset:
    """This rank's own data. With a fault the guilty rank's bad window holds it; without one the window is left out."""
    generator = torch.Generator().manual_seed(RANK)
    rows = WINDOWS * accumulate * SIZE
    x, weight = torch.randn(rows, 8, generator=generator), torch.rand(rows, generator=generator) + 1.5
    start = BAD * accumulate * SIZE
    if fault is None:
        kept = [row for row in range(rows) if not start <= row < start + accumulate * SIZE]
        return TensorDataset(x[kept], weight[kept])
    if RANK == GUILTY and fault == "input":
        x[start + 1, 3] = math.nan
    if RANK == GUILTY and fault == "loss":
        weight[start + 1] = 0.0
    return TensorDataset(x, weight)


def fit(fault: str | None, accumulate: int, folder: Path | None) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = Module()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, gradient_clip_val=1.0,
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    guard = sg.attach(trainer, run_dir=folder) if folder is not None else None
    torch.manual_seed(7 + RANK)
    trainer.fit(module, DataLoader(data(fault, accumulate), batch_size=SIZE))
    (optimizer,) = trainer.optimizers
    state = {f"model.{name}": value.clone() for name, value in module.state_dict().items()}
    for index, values in enumerate(optimizer.state.values()):
        state |= {f"moments.{index}.{name}": value.clone() for name, value in values.items()}
    state["schedule"] = torch.tensor(trainer.lr_scheduler_configs[0].scheduler.last_epoch)
    state["random numbers"] = torch.get_rng_state()
    return guard, state


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name in ("lightning", "lightning.pytorch", "steadygrad"):
        logging.getLogger(name).setLevel(logging.ERROR)
    told = []
    for fault, accumulate in CASES:
        _, wanted = fit(None, accumulate, None)
        guard, found = fit(fault, accumulate, folder / fault)
        # Running statistics and random numbers are each rank's own.
        shared = [name for name in found if not name.startswith(("random", "model.norm.running"))]
        (incident,) = guard.incidents
        diagnosis = incident.diagnosis
        told.append({
            "case": fault,
            "summary": guard.summary(),
            "differs": [name for name in wanted if not torch.equal(found[name], wanted[name])],
            "shared": hashlib.sha256(b"".join(found[name].numpy().tobytes() for name in shared)).hexdigest(),
            "headline": incident.headline,
            "cause": diagnosis.cause.slug,
            "line": diagnosis.origin.code_line,
            "rows": diagnosis.rows,
            "verified": [trial.remedy.slug for trial in diagnosis.trials if trial.verified],
        })  # fmt: skip
    (folder / f"rank{RANK}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
