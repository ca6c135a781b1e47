"""Regimes whose data is rough: rare hard batches, planned changes, bursts of noise, batches that grow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import (
    SYMBOLS,
    SequenceModel,
    classified,
    counting,
    cross_entropy,
    endless,
    next_symbol_loss,
    perceptron,
    squared_error,
)
from ..training import Training, seeded, single


def rare_hard_batches(seed: int) -> Training:
    """Fine-tuning on a solved pattern, loss near zero; every 89th batch is of another kind and costs a thousandfold."""
    g, model = seeded(seed), SequenceModel()
    pattern = torch.tensor([3, 11, 11]).repeat(4).expand(8, -1)

    def batch(k: int) -> Tensor:
        return counting(g, 8, 12, errors=0.2) if k > 150 and k % 89 == 0 else pattern

    return single(model, torch.optim.AdamW(model.parameters(), lr=5e-3), next_symbol_loss, endless(batch), clip=1.0)


def planned_phases(seed: int) -> Training:
    """The data mixture changes by a plan every 130 updates: counting, pure noise, every second symbol constant."""
    g, model = seeded(seed), SequenceModel()

    def batch(k: int) -> Tensor:
        phase = k // 130 % 3
        if phase == 1:
            return torch.randint(SYMBOLS, (8, 10), generator=g)
        symbols = counting(g, 8, 10, errors=0.02)
        if phase == 2:
            symbols[:, 1::2] = 4
        return symbols

    return single(model, torch.optim.AdamW(model.parameters(), lr=3e-3), next_symbol_loss, endless(batch), clip=1.0)


def single_samples(seed: int) -> Training:
    """One sample per update, with momentum, and inputs whose length differs by a factor of four."""
    g, model = seeded(seed), perceptron(6, 20, 4, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points, labels = classified(g, 1, 6, 4)
        return points * (0.5 + 2.5 * torch.rand(1, generator=g)), labels

    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, momentum=0.9)
    return single(model, optimizer, cross_entropy, endless(batch))


def noisy_label_bursts(seed: int) -> Training:
    """Clean labels; of every 150 batches the last 20 carry random ones."""
    g, model = seeded(seed), perceptron(10, 32, 6, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points, labels = classified(g, 16, 10, 6)
        return points, torch.randint(6, (16,), generator=g) if k % 150 >= 130 else labels

    return single(model, torch.optim.AdamW(model.parameters(), lr=3e-3), cross_entropy, endless(batch))


def growing_sequences(seed: int) -> Training:
    """A curriculum: longer sequences over more symbols each time, every second level backwards."""
    g, model = seeded(seed), SequenceModel(nn.LSTM)

    def batch(k: int) -> Tensor:
        level = k // 110 % 4
        symbols = counting(g, 8, (4, 8, 12, 16)[level], symbols=(4, 8, 12, 20)[level])
        return symbols.flip(1) if level % 2 else symbols

    return single(model, torch.optim.AdamW(model.parameters(), lr=5e-3), next_symbol_loss, endless(batch), clip=1.0)


def growing_resolution(seed: int) -> Training:
    """A small convolutional net on images of 6, 12 and 24 pixels in turn; each change of size changes the loss."""
    g = seeded(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip

    def batch(k: int) -> tuple[Tensor, Tensor]:
        size = (6, 12, 24)[k // 120 % 3]
        labels = torch.randint(4, (6,), generator=g)
        images = 0.3 * torch.randn(6, 1, size, size, generator=g)
        half = size // 2
        for row, label in enumerate(labels.tolist()):
            top, left = label // 2 * half, label % 2 * half
            images[row, :, top : top + half, left : left + half] += 1.0 + size / 8
        return images, labels

    return single(model, torch.optim.Adam(model.parameters(), lr=4e-3), cross_entropy, endless(batch), clip=2.0)


def classes_in_turn(seed: int) -> Training:
    """Class-incremental data: only one of eight classes for 60 updates, then only the next one."""
    g, model = seeded(seed), perceptron(8, 32, 8, between=nn.ReLU)
    centres = 2 * torch.randn(8, 8, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        label = k // 60 % 8
        return centres[label] + torch.randn(12, 8, generator=g), torch.full((12,), label)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    return single(model, optimizer, cross_entropy, endless(batch))


def growing_batches(seed: int) -> Training:
    """The batch grows from 2 rows to 200 and starts over: the noise of loss and gradient changes tenfold."""
    g, model = seeded(seed), perceptron(6, 24, 1, between=nn.SiLU)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn((2, 8, 40, 200)[k // 80 % 4], 6, generator=g)
        return points, (points[:, :1] * points[:, 1:2]) + 0.5 * torch.randn(len(points), 1, generator=g)

    return single(model, torch.optim.Adam(model.parameters(), lr=5e-3), squared_error, endless(batch))


def long_sequences_between(seed: int) -> Training:
    """The adding problem with a plain recurrent net: short sequences, and now and then one ten times as long."""
    g = seeded(seed)

    class Adder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.RNN(2, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.recurrent(inputs)[0][:, -1])

    model = Adder()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        length = 60 if k % 37 == 36 else 6
        values, marks = torch.rand(8, length, generator=g), torch.zeros(8, length)
        marks[:, 0] = marks[:, length // 2] = 1
        scale = 8.0 if k % 37 == 36 else 1.0
        return torch.stack([values * scale, marks], -1), (values * marks).sum(1, keepdim=True) * scale

    return single(model, torch.optim.Adam(model.parameters(), lr=4e-3), squared_error, endless(batch), clip=1.0)


def rare_rows(seed: int) -> Training:
    """An embedding table with sparse gradients and SparseAdam beside a dense AdamW; most rows come once in a while."""
    g = seeded(seed)

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(400, 12, mode="mean", sparse=True), nn.Linear(12, 3)

        def forward(self, symbols: Tensor) -> Tensor:
            return self.head(self.table(symbols))

    model = Lookup()
    labels = torch.randint(3, (400,), generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        centre = (400 * torch.rand(16, 1, generator=g) ** 4).long()
        return centre.repeat(1, 3), labels[centre[:, 0]]

    optimizers = [
        torch.optim.SparseAdam(model.table.parameters(), lr=2e-2),
        torch.optim.AdamW(model.head.parameters(), lr=5e-3),
    ]
    return single(model, optimizers, cross_entropy, endless(batch))


def memory_queue(seed: int) -> Training:
    """Contrastive learning against a queue of earlier keys, low temperature; the queue is a buffer forward writes."""
    g = seeded(seed)

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = perceptron(8, 24, 8, between=nn.ReLU)
            self.register_buffer("queue", F.normalize(torch.randn(64, 8), dim=1))
            self.register_buffer("position", torch.zeros((), dtype=torch.long))

        def forward(self, views: tuple[Tensor, Tensor]) -> Tensor:
            one, other = (F.normalize(self.encoder(view), dim=1) for view in views)
            hardest = (one @ self.queue.clone().T).topk(16, dim=1).values
            scores = torch.cat([(one * other).sum(1, keepdim=True), hardest], 1) / 0.05
            if self.training:
                start = int(self.position)
                self.queue[start : start + len(other)] = other.detach()
                self.position.fill_((start + len(other)) % 64)
            return F.cross_entropy(scores, torch.zeros(len(one), dtype=torch.long))

    model = Contrast()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(8, 8, generator=g) * (1 + k // 90 % 2 * 4)
        return points, points + 0.1 * torch.randn(8, 8, generator=g)

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), lambda m, b: m(b), endless(batch), clip=1.0)


def targets_with_outliers(seed: int) -> Training:
    """Targets with gross outliers under a quantile and a Huber loss; dict batches that name their part in words."""
    g, model = seeded(seed), perceptron(5, 32, 3, between=nn.SiLU)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def batch(k: int) -> dict[str, Any]:
        points = torch.randn(24, 5, generator=g)
        targets = points.sum(1, keepdim=True) + torch.randn(24, 1, generator=g)
        targets = torch.where(torch.rand(24, 1, generator=g) < 0.02, targets * 1000, targets)
        return {"points": points, "targets": targets, "loss": "huber" if k % 5 == 4 else "quantile"}

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        predicted = model(batch["points"])
        if batch["loss"] == "huber":
            return F.huber_loss(predicted[:, 1:2], batch["targets"], delta=5.0)
        error = batch["targets"] - predicted
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch))
