"""A training loop that knows nothing of steadygrad, with one broken sample in its data.

    python examples/plain_loop.py               # the weights turn NaN
    steady run examples/plain_loop.py           # the update is refused, and the sample is named

Nothing in this file is there for the guard.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BROKEN = 137


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of four clusters. One of them was recorded with a sensor that had failed."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        centres = 3 * torch.randn(4, 16, generator=generator)
        self.labels = torch.randint(4, (256,), generator=generator)
        self.points = centres[self.labels] + torch.randn(256, 16, generator=generator)
        self.points[BROKEN, 3] = float("nan")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Points(), batch_size=32, shuffle=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(loader))
    for epoch in range(arguments.epochs):
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        sound = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
        print(f"epoch {epoch}: weights {'finite' if sound else 'NOT FINITE'}, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
