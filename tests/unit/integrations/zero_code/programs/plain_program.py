"""The loop everybody writes."""

from __future__ import annotations

from typing import Any

import torch
from common_parts import BATCH, Net, compare, points, state
from torch.utils.data import DataLoader


def train(accumulate: int, poison: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    torch.manual_seed(1)
    for index, x in enumerate(DataLoader(points(accumulate, poison), BATCH), 1):  # type: ignore[arg-type]
        ((model(x) - 1.0).pow(2).mean() / accumulate).backward()
        if index % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return state(model, optimizer, schedule)


if __name__ == "__main__":
    compare(train)
