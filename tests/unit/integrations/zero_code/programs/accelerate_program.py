"""A loop around an Accelerator."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from common_parts import BATCH, Net, compare, points, state
from torch.utils.data import DataLoader


def train(accumulate: int, poison: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    loader = DataLoader(points(accumulate, poison), BATCH)  # type: ignore[arg-type]
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    torch.manual_seed(1)
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - 1.0).pow(2).mean())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return state(accelerator.unwrap_model(model), optimizer.optimizer, schedule.scheduler)


if __name__ == "__main__":
    compare(train)
